"""What the public functions do: they call the room that does the work, and show what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmill.api.display import PlanReport
    from tokenmill.output.result import Result
    from tokenmill.pipeline import DownloadReport


def fineweb(options: dict[str, Any]) -> Result:
    from tokenmill.fineweb_parts import fineweb_options

    return prepare(fineweb_options(options))


def prepare(options: dict[str, Any]) -> Result:
    """`options`: all arguments of `prepare` by name."""
    from tokenmill import pipeline
    from tokenmill.api import display

    inputs, output, shown = _taken(options)
    result = display.shown_run(
        lambda **run: pipeline.prepare(inputs, output, **options, **run), **shown
    )
    result = display.reworded(result)
    if not shown["quiet"] and shown["observer"] is None:
        display.show_result(result)
    return result


def plan(options: dict[str, Any]) -> PlanReport:
    from tokenmill import pipeline
    from tokenmill.api import display

    inputs, output, shown = _taken(options)
    probe = options.pop("probe")
    proposal, estimate = pipeline.forecast(inputs, output, options, probe=probe)
    report = display.PlanReport(proposal=proposal, estimate=estimate)
    if not shown["quiet"]:
        display.show([str(report)])
    return report


def download(options: dict[str, Any]) -> DownloadReport:
    from tokenmill import pipeline
    from tokenmill.api import display

    inputs, output, shown = _taken(options)
    report = display.shown_run(
        lambda **run: pipeline.download(inputs, output, **options, **run), **shown
    )
    if not shown["quiet"] and shown["observer"] is None:
        display.show_download(report)
    return report


def _taken(options: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Inputs, output and what concerns the display are taken out of the options."""
    shown = {name: options.pop(name, None) for name in ("quiet", "observer", "on_plan")}
    return options.pop("inputs"), options.pop("output"), shown


def finish(options: dict[str, Any]) -> Result:
    from tokenmill import finishing
    from tokenmill.api import display

    shown = {name: options.pop(name, None) for name in ("quiet", "observer", "on_plan")}
    result = display.shown_run(
        lambda *, on_plan=None, **run: finishing.finish(**options, **run), **shown
    )
    result = display.reworded(result)
    if not shown["quiet"] and shown["observer"] is None:
        display.show_result(result)
    return result
