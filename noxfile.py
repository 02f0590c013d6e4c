"""Checks of the project, in the environment that is active, so that torch is installed once: `nox`, `nox -s tests`."""

import os
import shutil

import nox

nox.options.default_venv_backend = "none"
NEITHER = "not long and not page and not latex and not slurm and not soak"
nox.options.sessions = ["lint", "types", "tests", "page", "report", "check"]


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
    """All tests but the long ones and those that need programs of the system (`nox -s long`, `page`, ...).

    Two processes with one thread each: most tests are too small for two threads to gain anything.
    """
    session.run("pytest", "-n", "2", "--dist", "loadfile", "-m", NEITHER, *session.posargs)


def installed(session: nox.Session, program: str, packages: tuple[str, ...]) -> bool:
    """Whether a program of the system is there, or Debian's package manager, if we may use it, could get it."""
    if shutil.which(program) is None and shutil.which("apt-get") and os.geteuid() == 0:
        anything = range(256)  # no network is no failure of ours: the session is then skipped
        session.run("apt-get", "update", "-qq", external=True, success_codes=anything, silent=True)
        install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages)
        session.run(*install, external=True, success_codes=anything, silent=True)
    return shutil.which(program) is not None


@nox.session
def page(session: nox.Session) -> None:
    """The report's page in a real Chromium, if there is one: nothing is installed for it."""
    if shutil.which("chromium") is None:
        session.skip("there is no Chromium: apt-get install chromium")
    session.run("pytest", "-m", "page", *session.posargs)


@nox.session
def report(session: nox.Session) -> None:
    """Committed tables, figures and page follow from the published records."""
    session.run("bench", "report", "--check")


@nox.session
def latex(session: nox.Session) -> None:
    """LaTeX tables compile."""
    if not installed(session, "pdflatex", ("texlive-latex-base", "texlive-latex-recommended")):
        session.error("there is no pdflatex, and apt cannot install it")
    session.run("pytest", "-m", "latex", *session.posargs)


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
    """Real images: `nox -s real -- DATA BACKBONE WEIGHTS`, CIFAR-10 and Tiny-ImageNet or parts of them.

    Runs FEA on both, views 2, budget quick; then FRoST, which must find everything computed.
    """
    if len(session.posargs) != 3:
        session.error("give the data folder, a backbone and its weights: nox -s real -- DATA BACKBONE WEIGHTS")
    data, backbone, weights = session.posargs
    given = ("--backbone", backbone, "--weights", weights, "--data-dir", data, "--views", "2")
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


@nox.session
def slurm(session: nox.Session) -> None:
    """A sweep on a Slurm of two nodes that is started on this machine, as root."""
    if not installed(session, "slurmctld", ("slurm-wlm", "munge")):
        session.error("there is no Slurm, and apt cannot install it")
    session.run("pytest", "-s", "-m", "slurm", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """A hundred kills at random moments; no difference may come of them."""
    session.run("pytest", "-s", "-m", "soak", *session.posargs)
