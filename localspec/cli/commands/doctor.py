"""`localspec doctor`: the state of this installation, and what to do about each bad finding. Exit code 1 if any."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from localspec.cli.options import add_model_options, load_engine, take_default
from localspec.paths import typed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localspec.checks.doctor import Finding


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    parser.add_argument("--check-updates", action="store_true", help="ask PyPI whether a newer localspec is out")
    parser.add_argument("--disk", action="store_true", help="all that is kept on disk, with sizes")
    parser.add_argument(
        "--bundle", metavar="FILE", help="write a report for an issue as JSON, without prompts and keys"
    )
    add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    from localspec.checks.doctor import examine_engine, examine_machine, examine_machine_state

    take_default(options)
    findings = [*examine_machine(options.wide), *examine_machine_state()]
    if options.disk:
        from localspec.checks.doctor import examine_disk

        findings += examine_disk()
    if options.check_updates:
        from localspec.checks.doctor import examine_updates

        findings.append(examine_updates())
    with load_engine(options) as engine:
        findings += examine_engine(engine)
        settings = asdict(engine.settings)
    if options.bundle:
        from localspec.checks.bundle import write_bundle

        write_bundle(typed(options.bundle), findings, settings)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        _print(findings)
        if options.bundle:
            print(f"Wrote {options.bundle}. Read it before you attach it to an issue.")
    return 1 if any(finding.advice for finding in findings) else 0


def _print(findings: Sequence[Finding]) -> None:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{finding.name:{width}}  {finding.value}")
        if finding.advice:
            print(f"{'':{width}}  -> {finding.advice}")
        if finding.command:
            print(f"{'':{width}}     {finding.command}")
