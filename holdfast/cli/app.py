"""The typer application: every verb, in the order in which one meets them.

Plain help without rich: drawing boxes would cost more than half of the start-up time.
"""

from typing import Annotated

import typer

from holdfast.cli import (
    chaos,
    check,
    checkpoint,
    dashboard,
    delete,
    doctor,
    explain,
    federate,
    goodput,
    incidents,
    lint,
    listing,
    logs,
    nodes,
    operator,
    plan,
    profile,
    render,
    replay,
    report,
    resume,
    run,
    scale,
    schema,
    simulate,
    stacks,
    status,
    stop,
    submit,
    sweep,
    top,
    update,
    validate,
    version,
    watch,
    why,
)
from holdfast.cli.agent import agent
from holdfast.cli.controller import drive

app = typer.Typer(
    name="holdfast",
    help="Keeps large training jobs running: detect, explain and repair failures.",
    no_args_is_help=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def holdfast(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    """Keeps large training jobs running: detect, explain and repair failures."""
    if show_version:
        version.version()
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    epilog="Other torchrun flags are supported too: see docs/reference/torchrun-flags.md.",
)(run.run)
app.command("submit")(submit.submit)
app.command("sweep")(sweep.sweep)
app.command("list")(listing.list_jobs)
app.command("status")(status.status)
app.command("watch")(watch.watch)
app.command("dashboard")(dashboard.dashboard)
app.command("top")(top.top)
app.command("logs")(logs.logs)
app.command("why")(why.why)
app.command("incidents")(incidents.incidents)
app.command("stacks")(stacks.stacks)
app.command("profile")(profile.profile)
app.command("chaos")(chaos.chaos)
app.command("goodput")(goodput.goodput)
app.command("report")(report.report)
app.command("stop")(stop.stop)
app.command("scale")(scale.scale)
app.command("update")(update.update)
app.command("resume")(resume.resume)
app.command("delete")(delete.delete)
app.add_typer(checkpoint.checkpoint, name="checkpoint")
app.command("nodes")(nodes.nodes)
app.command("validate")(validate.validate)
app.command("render")(render.render)
app.command("lint")(lint.lint)
app.command("schema")(schema.schema)
app.command("plan")(plan.plan)
app.command("simulate")(simulate.simulate)
app.command("doctor")(doctor.doctor)
app.command("check")(check.check)
app.command("replay")(replay.replay)
app.command("explain")(explain.explain)
app.command("version")(version.version)
app.command("federate")(federate.federate)
app.command("operator")(operator.operator)
app.command("controller", hidden=True)(drive)
app.command("agent", hidden=True)(agent)
