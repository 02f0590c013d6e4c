"""Checks of the project, in the environment that is active, so that torch is installed once: `nox`, `nox -s tests`."""

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "tests", "check"]


@nox.session
def lint(session: nox.Session) -> None:
    """Style and common faults."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Static types."""
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """All tests but the long ones (`nox -s long`)."""
    session.run("pytest", "-m", "not long", *session.posargs)


@nox.session
def check(session: nox.Session) -> None:
    """Every method on the small protocol against its golden figures."""
    session.run("bench", "check")


@nox.session
def faults(session: nox.Session) -> None:
    """Plant known faults in copies of the project; fails if one leaves tests and check green (docs/testing.md)."""
    session.run("python", "tests/faults", *session.posargs)


@nox.session
def real(session: nox.Session) -> None:
    """Real images: `nox -s real -- DATA WEIGHTS`, CIFAR-10 and Tiny-ImageNet (or parts of them) and a ViT-S/14's file.

    Runs FEA on both with dinov2-s14-trunc11, views 2, budget quick; then FRoST, which must find everything computed.
    """
    if len(session.posargs) != 2:
        session.error("give the data folder and the weights: nox -s real -- DATA WEIGHTS")
    data, weights = session.posargs
    given = ("--backbone", "dinov2-s14-trunc11", "--weights", weights, "--data-dir", data, "--views", "2")
    folder = session.create_tmp()
    for protocol in ("cifar10-t2", "tiny-t10"):
        for method in ("fea", "frost"):
            session.run(
                "bench",
                "run",
                "--method",
                method,
                "--protocol",
                protocol,
                "--budget",
                "quick",
                *given,
                "--out",
                f"{folder}/results",
            )


@nox.session
def long(session: nox.Session) -> None:
    """Minutes rather than seconds: many kills of one run, and the shipped weights made anew."""
    session.run("pytest", "-m", "long", *session.posargs)
