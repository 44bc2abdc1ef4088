"""Reads the terminal so that a lone Esc counts after ESCDELAY; Textual's own reader looks only every 0.1 s."""

from __future__ import annotations

import os
import select
from codecs import getincrementaldecoder

from textual import constants
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

_LOOK_SECONDS = 0.1  # how often it is asked, while no key is pressed, whether the app has ended
_MARGIN_SECONDS = 0.001  # after the end of a delay, so that it is over when it is looked


class Terminal(LinuxDriver):
    def run_input_thread(self) -> None:
        parser = XTermParser(self._debug)
        decode = getincrementaldecoder("utf-8")("replace").decode
        wait = _LOOK_SECONDS
        while not self.exit_event.is_set():
            ready, _, _ = select.select([self.fileno], [], [], wait)
            wait = _LOOK_SECONDS
            if ready:
                read = os.read(self.fileno, 4096)
                if not read:  # the other end is closed
                    self.exit_event.wait(_LOOK_SECONDS)
                text = decode(read)  # empty while a character is only half here: the parser would take that for the end
                for event in parser.feed(text) if text else ():
                    self.process_message(event)
                wait = min(wait, constants.ESCAPE_DELAY + _MARGIN_SECONDS)
            for event in parser.tick():
                self.process_message(event)
