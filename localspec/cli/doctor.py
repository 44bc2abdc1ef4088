"""`localspec doctor`: the state of this installation, and what to do about each bad finding. Exit code 1 if any."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from localspec.cli.options import add_model_options, load_engine


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    from localspec.checks.doctor import examine_engine, examine_machine
    from localspec.checks.machine import examine_machine_state

    findings = [*examine_machine(options.wide), *examine_machine_state()]
    with load_engine(options) as engine:
        findings += examine_engine(engine)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{finding.name:{width}}  {finding.value}")
            if finding.advice:
                print(f"{'':{width}}  -> {finding.advice}")
            if finding.command:
                print(f"{'':{width}}     {finding.command}")
    return 1 if any(finding.advice for finding in findings) else 0
