"""Commands for many runs: sweep, and step, which jobs of a cluster call."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from benchmark.cli.app import JsonFlag, OfflineFlag, app, listening, print_json
from benchmark.errors import MissingError, UsageError


@app.command()
def sweep(
    suite: Annotated[
        str | None, typer.Option(help="A suite of `bench list suites`, or a YAML file; or give methods and protocols.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, divided by commas; of a suite, only these.")] = None,
    protocols: Annotated[str | None, typer.Option(help="Protocols, likewise.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, such as 0-2 or 0,3,7.")] = None,
    params: Annotated[str | None, typer.Option(help="Parameter sets, divided by commas.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE,...", help="As for bench run; several values make several runs."),
    ] = None,
    budget: Annotated[str | None, typer.Option(help="How long to train: paper, medium or quick.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Another backbone than the protocols'.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of the backbone.")] = None,
    views: Annotated[str | None, typer.Option(help="Augmented views an image (2 or more), or live.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the datasets.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    out: Annotated[Path, typer.Option(help="Folder of records, plan and logs.")] = Path("results"),
    name: Annotated[str | None, typer.Option(help="What to call the sweep; else it gets a name.")] = None,
    engine: Annotated[str, typer.Option(help="local: this machine; slurm: submit jobs.")] = "local",
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once; on Slurm, tasks of an array at once.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of a run; else its share of the cores.")
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of a machine; tokens are made with all.")] = None,
    runs_per_job: Annotated[int, typer.Option(min=1, help="Slurm: runs of one job.")] = 1,
    minutes: Annotated[int | None, typer.Option(min=5, help="Slurm: time limit of a job.")] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(help="Slurm: another option for sbatch, such as --partition=gpu; repeatable.")
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Begin nothing more once a step has failed.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Only steps that failed before.")] = False,
    offline: OfflineFlag = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Only say how a sweep stands.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Many runs from one plan; what is done is left out, so the same command again goes on or tries again."""
    from benchmark.sweep import command, slurm  # noqa: PLC0415
    from benchmark.sweep.display import SweepDisplay  # noqa: PLC0415
    from benchmark.sweep.status import chosen_sweep, plan_text, read_status  # noqa: PLC0415
    from benchmark.sweep.suites import Common  # noqa: PLC0415

    def parts(text: str | None) -> list[str]:
        return [part.strip() for part in text.split(",")] if text else []

    if engine not in ("local", "slurm"):
        raise UsageError(f"--engine: '{engine}': must be local or slurm")
    common = Common(budget, backbone, weights, views, data_dir)
    choice = command.Choice(suite, parts(methods), parts(protocols), seeds, parts(params), settings or [], common, name)
    if status:
        which = name if name or choice.is_empty else choice.title(choice.blocks())
        found = read_status(chosen_sweep(out, which))
        hint = slurm.queued(found.folder)
        if as_json:
            print_json({"schema": 1, **found.document(), "queue": hint})
        else:
            typer.echo("\n".join([found.text(), *([""] if hint else []), *(f"in the queue: {line}" for line in hint)]))
        return
    from benchmark.data.fetch import is_offline  # noqa: PLC0415

    stop = listening()
    on_slurm = engine == "slurm"
    if device != "auto" and not on_slurm:
        from benchmark.engine.world import pick_device  # noqa: PLC0415 - imports torch

        pick_device(device)
    machine = (
        command.Machine.of_cluster(threads, cores, device)
        if on_slurm
        else command.Machine.here(jobs, threads, cores, device)
    )
    plan = command.planned(choice, out, machine)
    if dry_run:
        document = {"runs": plan.runs, "done": plan.done, "steps": [vars(step) for step in plan.steps]}
        document |= {"bytes": plan.bytes, "missing": plan.missing}
        print_json({"schema": 1, **document}) if as_json else typer.echo(plan_text(plan, machine.jobs))
        return
    if plan.missing and is_offline(offline):
        raise MissingError(
            f"{', '.join(plan.missing)} must be fetched first: leave --offline out, or use `bench fetch`"
        )
    plan = command.brought_here(plan, lambda: command.planned(choice, out, machine), stop)
    path = plan.write()
    if retry_failed:
        plan = command.only_failed(plan)
    typer.echo(f"{plan.runs} runs, {plan.done} done, {len(plan.of('run'))} to do; plan: {path}", err=True)
    if on_slurm:
        cluster = slurm.Cluster(jobs or 0, runs_per_job, minutes, tuple(sbatch or ()), device.startswith("cuda"))
        lines = command.submitted(plan, cluster) if plan.steps else []
        where = f"bench sweep --status --name {plan.name} --out {shlex.quote(str(out))}"
        typer.echo("\n".join([*lines, f"how it stands: {where}"]))
        return
    pool = command.carried_out(plan, machine, fail_fast=fail_fast, display=SweepDisplay(), stop=stop)
    found = read_status(plan.folder)
    print_json({"schema": 1, **found.document()}) if as_json else typer.echo(found.text())
    command.raise_for(pool, plan)
    command.raise_for_diverged(pool, plan)


@app.command()
def step(
    plan: Annotated[Path, typer.Argument(help="The plan.jsonl of a sweep.")],
    names: Annotated[list[str] | None, typer.Argument(help="Steps by name; none: all, or those of a task.")] = None,
    kind: Annotated[str | None, typer.Option(help="Steps of this kind only: fetch, bank, base or run.")] = None,
    task: Annotated[int | None, typer.Option(min=0, help="The number of this task, of an array of tasks.")] = None,
    per_task: Annotated[int, typer.Option(min=1, help="Steps of a task.")] = 1,
    skip: Annotated[int, typer.Option(min=0, help="Steps that other arrays have.")] = 0,
) -> None:
    """Carry out steps of a plan, one after the other: what jobs of a cluster call. What is done is not done again."""
    from benchmark.protocol.reading import suggest  # noqa: PLC0415
    from benchmark.sweep import command  # noqa: PLC0415
    from benchmark.sweep.plan import KINDS  # noqa: PLC0415

    chosen = next((known for known in KINDS if known == kind), None)
    if kind is not None and chosen is None:
        raise UsageError(f"--kind: unknown kind '{kind}'{suggest(kind, KINDS)}")
    steps, known = command.chosen_steps(plan, names or [], chosen, task, per_task, skip)
    code = command.run_steps(plan, steps, known, listening(), lambda text: typer.echo(text, err=True))
    if code:
        raise typer.Exit(code)
