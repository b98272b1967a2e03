"""The registry of benchmarks: a name, what is called, and how to tell that its answer is right.

A benchmark is a function that prepares its inputs and returns a `Case`; nothing is prepared before the
benchmark is asked for. Every answer is checked once before any time is taken, so that a broken function
is refused instead of measured.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
PREFIX = "bench_"


class WrongAnswerError(AssertionError):
    """A benchmark's function does not do what it is measured for."""


@dataclass(frozen=True, slots=True)
class Case(Generic[T]):
    """`call` may be called any number of times; `check` says whether an answer of it is right."""

    call: Callable[[], T]
    check: Callable[[T], bool]

    def prove(self, name: str) -> None:
        """Call once; WrongAnswerError when there is no answer, or a wrong one."""
        try:
            answer = self.call()
            right = self.check(answer)
        except Exception as error:
            raise WrongAnswerError(f"{name}: {type(error).__name__}: {error}") from error
        if not right:
            raise WrongAnswerError(f"{name}: wrong answer {str(answer)[:200]!r}")


Setup = Callable[[], Case[T]]
BENCHMARKS: dict[str, Callable[[], Case[object]]] = {}


def benchmark(name: str) -> Callable[[Setup[T]], Setup[T]]:
    """Register a set-up function as ``stage.what.variant``; ValueError when the name is taken."""

    def register(setup: Setup[T]) -> Setup[T]:
        if name in BENCHMARKS:
            raise ValueError(f"two benchmarks are called {name}")
        BENCHMARKS[name] = setup  # type: ignore[assignment]  # a Case keeps its answer's type to itself
        return setup

    return register


def always(expected: T) -> Callable[[T], bool]:
    """A check for the functions whose answer is known."""
    return lambda answer: answer == expected


def load() -> dict[str, Callable[[], Case[object]]]:
    """Every benchmark by name, in the order of stages."""
    for path in sorted(Path(__file__).parent.glob(f"{PREFIX}*.py")):
        importlib.import_module(f"{__package__}.{path.stem}")
    return dict(sorted(BENCHMARKS.items()))


def prepared(names: Iterable[str]) -> dict[str, Case[object]]:
    """The cases of `names`, each proved right once."""
    cases = {}
    for name in names:
        cases[name] = BENCHMARKS[name]()
        cases[name].prove(name)
    return cases
