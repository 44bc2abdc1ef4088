"""`localspec serve`: an OpenAI-style endpoint over one or several engines. `app.create_app` is the door."""
