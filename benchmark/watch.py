"""What `bench try` looks at while a method runs: files it reads, ways around the contract, and a run that is cut."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from benchmark.display import Display, Stop
from benchmark.engine.own_code import is_ours

CODE = (".py", ".pyc", ".pyi", ".so", ".pyd", ".dll", ".dylib", ".pth")
SNOOPING = ("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._getframe", "sys._current_frames")
CALLER = str(Path(__file__).with_name("trial.py"))
"""Beyond its frames nothing is the method's doing."""


class Watch:
    """Notes files that the user's code opens, and looks into the interpreter, while it is being watched."""

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.watching = folder, False
        self.found: list[str] = []
        if folder is not None:
            sys.addaudithook(self._note)  # stays for the life of the process, and does nothing while not watching

    @contextmanager
    def watched(self) -> Iterator[None]:
        self.watching = True
        try:
            yield
        finally:
            self.watching = False

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching or (event != "open" and event not in SNOOPING):
            return
        self.watching = False  # what happens in here is not the user's doing
        try:
            place = self._own_place(sys._getframe(1), direct=event != "open")  # noqa: SLF001 - who asked for it?
            what = f"opens {arguments[0]}" if event == "open" else f"calls {event}"
            if place and not (event == "open" and belongs_to_python(arguments[0])):
                self.found.append(f"{place} {what}")
        finally:
            self.watching = True

    def _own_place(self, frame: FrameType | None, *, direct: bool) -> str | None:
        """`mine.py, line 12`, if the user's code is what asked (`direct`), or called whatever asked."""
        while frame is not None:
            file = frame.f_code.co_filename
            if file == CALLER or file.startswith("<frozen "):
                return None  # who called us, and what a library reads while it is imported, are no part of the method
            if not file.startswith("<") and self.folder is not None:
                if Path(file).resolve().is_relative_to(self.folder) and not is_ours(file):
                    return f"{Path(file).name}, line {frame.f_lineno}"
                if direct:
                    return None
            frame = frame.f_back
        return None


def belongs_to_python(path: object) -> bool:
    """Code, what libraries read for themselves, and what the system says of itself; but not images they come with."""
    if not isinstance(path, str):
        return True
    if "/datasets/" in path.replace("\\", "/"):
        return False
    libraries = path.startswith((sys.prefix, sys.base_prefix, "/proc/", "/sys/", "/dev/", "/usr/", "/etc/"))
    return libraries or path.endswith(CODE)


class Killed(BaseException):
    """Ends a run where it stands, as if the process had died."""


class Interrupting(Display):
    """Asks a run to stop in the middle of session 1, or kills it once that session is over."""

    def __init__(self, stop: Stop | None = None) -> None:
        super().__init__(quiet=True)
        self.stop = stop

    def step(self, done: int) -> None:
        if self.stop is not None and self.work.title.startswith("session 1") and 2 * done >= self.work.total:
            self.stop.signal = signal.SIGTERM

    def say(self, text: str) -> None:
        if self.stop is None and text.startswith("session 1:"):
            raise Killed
