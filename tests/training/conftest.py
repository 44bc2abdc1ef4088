"""The bundled target and a part of its vocabulary."""

from tests.drafters.cut.conftest import header as header
from tests.drafters.cut.conftest import part as part
