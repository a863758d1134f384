"""Options and inputs to a plan, and how it would be run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from tokenmill.amounts import parse_bytes
from tokenmill.errors import UsageError
from tokenmill.inputs.find import SourceListing, find_sources
from tokenmill.inputs.kinds import kind_named
from tokenmill.inputs.opening.access import LOCAL, InputAccess
from tokenmill.inputs.remote.address import is_url
from tokenmill.inputs.remote.hub import ListCache
from tokenmill.planning.hub_tokenizer import fetch_tokenizer, tokenizer_address
from tokenmill.planning.mixture.inputs import (
    FindDataset,
    find_mixture,
    no_datasets,
    refuse_with_mixture,
)
from tokenmill.planning.mixture.mix_file import read_mixture
from tokenmill.planning.needs import Needs
from tokenmill.planning.options import Options, plan_settings, run_settings, whole_text_val
from tokenmill.planning.plan import Plan
from tokenmill.planning.reuse import Reuse
from tokenmill.settings import RunSettings
from tokenmill.system.cache import read_from_cache
from tokenmill.system.limits import refuse_few_files
from tokenmill.system.memory import Budget, fit_budget
from tokenmill.tokenizer.bundled import Encoding
from tokenmill.tokenizer.encoders.decision import EncoderDecision, decide
from tokenmill.tokenizer.files import find_encoding
from tokenmill.tokens.order import in_plan_order


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and how it would be run: what `tokenmill plan` shows."""

    plan: Plan
    encoding: Encoding
    found: SourceListing
    run: RunSettings
    budget: Budget
    output: str
    needs: Needs | None = None  # where inputs are elsewhere
    reuse: Reuse | None = None  # what is taken from an old dataset

    @property
    def decision(self) -> EncoderDecision:
        return decide(self.encoding, self.run.encoder)


def make_plan(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: Options,
    shelf: ListCache | None = None,
    bound_revisions: Callable[[], dict[str, str]] = dict,
    find_dataset: FindDataset = no_datasets,
    access: InputAccess = LOCAL,
) -> Proposal:
    """Validate everything and look at the inputs. Writes nothing.

    `bound_revisions`: the commits of the Hub that an unfinished job in `output` is bound to.
    `find_dataset`: opens a prepared dataset that a mixture names. `access`: opens input files.
    """
    mixture = read_mixture(options.mix) if options.mix else None
    if mixture is not None:
        refuse_with_mixture(options, inputs)
        inputs = [one for source in mixture.sources for one in source.inputs]
    if isinstance(inputs, str | os.PathLike):
        inputs = [inputs]
    if not isinstance(inputs, Sequence) or not all(
        isinstance(i, str | os.PathLike) for i in inputs
    ):
        raise UsageError(f"inputs are paths, not {type(inputs).__name__}")
    shelf = shelf or ListCache(read_from_cache)
    address = tokenizer_address(options.tokenizer)
    remote = any(is_url(os.fspath(one)) for one in (*inputs, *options.val_inputs))
    asks_hub = remote or address is not None
    pins = bound_revisions() if asks_hub and not options.overwrite else {}
    tokenizer = options.tokenizer
    revisions: dict[str, str] = {}
    if address is not None:
        tokenizer, revisions = fetch_tokenizer(address, pins, shelf)
    encoding = find_encoding(tokenizer, options.pattern)
    settings = plan_settings(options, output, encoding)
    asked = options.memory
    memory = None if asked is None else parse_bytes(asked, what="--memory")
    budget = fit_budget(options.workers, memory)
    refuse_few_files(budget.workers)
    rules = options.input_rules
    if mixture is None:
        found = find_sources(inputs, settings.text_column, output, pins, shelf, rules, access)
    else:
        settings = msgspec.structs.replace(settings, mixture=mixture.settings)
        found = find_mixture(mixture, settings, output, pins, shelf, rules, find_dataset, access)
    if mixture is None and (val := whole_text_val(options, found.sources)):
        settings = plan_settings(msgspec.structs.replace(options, val=val), output, encoding)
    if settings.by_key:
        found = msgspec.structs.replace(found, sources=in_plan_order(found.sources))
    kinds = {source.kind for source in found.sources}
    if settings.text_separator and not any(kind_named(kind).has_separators for kind in kinds):
        raise UsageError("--text-separator: none of the inputs is a text file")
    return Proposal(
        plan=Plan(settings=settings, sources=found.sources, revisions=found.revisions | revisions),
        encoding=encoding,
        found=found,
        run=run_settings(options, budget, encoding),
        budget=budget,
        output=os.fspath(output),
    )
