"""What each slash command does to the chat in front: one method a command, named like it."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from keyword import iskeyword

from localspec.errors import UsageError
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.compacting import set_window
from localspec.tui.talk import exchange
from localspec.tui.widgets.dialogs import Line, say


class SlashCommands:
    """Each method takes the words after the command; the caller of `run` shows errors."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen, self._archive = screen, screen.session.archive

    async def run(self, name: str, rest: str) -> None:
        """Runs a command of `registry.OWN`."""
        do: Callable[[str], object] = getattr(self, name + "_" * iskeyword(name))
        result = do(rest)
        if isawaitable(result):
            await result

    async def new(self, _: str) -> None:
        await self._screen.open_chat()

    clear = new

    async def close(self, _: str) -> None:
        await self._screen.action_close_tab()

    def system(self, text: str) -> None:
        pane = self._screen.front
        self._archive.set_system(pane.chat_id, text)
        say(self._screen, "The system message is set." if text else "There is no system message any more.")
        pane.count()

    def again(self, _: str) -> None:
        self._screen.action_regenerate()

    def continue_(self, _: str) -> None:
        self._screen.action_go_on()

    async def compact(self, off: str) -> None:
        if off not in ("", "off"):
            raise UsageError(f"/compact takes no {off!r}.", "/compact summarises, /compact off undoes it.")
        if not off:
            self._screen.action_compact()
        else:
            await set_window(self._screen.front, None)
            say(self._screen, "The model sees the whole chat again.")

    def edit(self, _: str) -> None:
        self._screen.action_edit()

    def editor(self, text: str) -> None:
        self._screen.front.composer.put(text)
        self._screen.action_editor()

    async def branch(self, _: str) -> None:
        await self._screen.action_branch()

    def copy(self, what: str) -> None:
        if what == "code":
            self._screen.action_copy_code()
        else:
            self._screen.action_copy()

    def rename(self, title: str) -> None:
        if title:
            self._rename(self._screen.front.chat_id, title)
        else:
            self._screen.run_worker(self._ask_title(), group="title")

    def pin(self, _: str) -> None:
        chat = self._screen.front.chat
        self._archive.pin(chat.id, not chat.pinned)
        say(self._screen, "Unpinned." if chat.pinned else "Pinned: it stays on top of the list.")

    def tag(self, tags: str) -> None:
        self._archive.set_tags(self._screen.front.chat_id, tags.split())
        say(self._screen, f"Tags: {', '.join(tags.split())}." if tags else "The chat has no tags any more.")

    async def delete(self, _: str) -> None:
        pane = self._screen.front
        await self._screen.close_chat(pane)  # first: it still keeps its unsent text
        key = self._archive.chat(pane.chat_id).key
        deletion = self._archive.delete_chat(pane.chat_id)
        self._screen.forget(key)
        say(self._screen, f"Deleted {deletion.title or 'the chat'}; /undo brings it back.")

    async def undo(self, _: str) -> None:
        await self._screen.action_undo()

    async def private(self, _: str) -> None:
        private = not self._screen.session.private
        await self._screen.set_private(private)
        if not private:
            say(self._screen, "The private chats are gone; these are your others again.")

    def export(self, file: str) -> None:
        self._screen.tell(exchange.export(self._archive, self._screen.front.chat, file))

    def import_(self, file: str) -> None:
        self._screen.tell(exchange.import_(self._archive, file))

    def find(self, words: str) -> None:
        self._screen.find(words)

    def preset(self, name: str) -> None:
        presets = {preset.name: preset for preset in self._archive.presets()}
        if name not in presets:
            raise UsageError(
                f"There is no preset {name!r}." if name else "Name the preset.",
                f"There are: {', '.join(presets)}." if presets else "F3 saves one.",
            )
        chat_id = self._screen.front.chat_id
        self._archive.set_system(chat_id, presets[name].system)
        self._archive.set_params(chat_id, presets[name].params)
        say(self._screen, f"Preset {name}.")

    def theme(self, name: str) -> None:
        app = self._screen.app
        if not name:
            app.action_change_theme()
        elif name in app.available_themes:
            app.theme = name
        else:
            raise UsageError(f"There is no theme {name!r}.", f"There are: {', '.join(app.available_themes)}.")

    def model(self, name: str) -> None:
        from localspec.tui.screens.servers import choose_model  # an HTTP client, which few chats need

        choose_model(self._screen, name)

    def own(self, _: str) -> None:
        self._screen.action_own_model()

    def servers(self, _: str) -> None:
        from localspec.tui.screens.servers import find_server

        find_server(self._screen)

    def stop(self, _: str) -> None:
        self._screen.front.stop()

    async def quit(self, _: str) -> None:
        await self._screen.app.action_quit()

    async def exit(self, _: str) -> None:
        await self._screen.app.action_quit()

    def _rename(self, chat_id: int, title: str) -> None:
        self._archive.rename(chat_id, title)
        self._screen.show_titles()

    async def _ask_title(self) -> None:
        chat = self._screen.front.chat
        title = await self._screen.app.push_screen_wait(Line("Title of this chat", chat.title))
        if title:
            self._rename(chat.id, title)
