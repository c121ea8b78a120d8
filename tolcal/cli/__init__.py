"""The command line: parses, wires the stages, maps errors to exit statuses.

Exit status: 0 good, 1 a regression or a finding, 2 the user can mend it (one line), 3 a bug.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import traceback
from typing import NoReturn

from tolcal import __version__
from tolcal.cli import options, packages
from tolcal.hook import commands as hook
from tolcal.model import TolcalError


def entry() -> None:
    """The console script."""
    raise SystemExit(main())


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit status."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (`>&-`): whoever did it wants to read nothing
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    parser = build_parser()
    args = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal or pipe without Unicode shows a ?, which is better than nothing at all.
        sys.stdout.reconfigure(errors="replace")
    try:
        name = args.module if "." in args.module else f"tolcal.cli.{args.module}"
        module = importlib.import_module(name)
        status: int = getattr(module, args.function)(args)
        return status
    except TolcalError as error:
        print(f"tolcal: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        remedy = packages.remedy(error, measures=args.module in ("measuring", "minimizing"))
        if remedy is None:
            return _bug()
        print(f"tolcal: `tolcal {args.command}` needs {remedy}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tolcal: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `tolcal show | head`: the reader has left, which is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"tolcal: {where}{error.strerror or error}; check path, rights and space",
              file=sys.stderr)  # fmt: skip
        return 2
    except Exception:
        return _bug()


def _bug() -> int:
    """Tells of the exception being handled."""
    traceback.print_exc()
    print("tolcal: this is a bug in tolcal; please report it with the lines above",
          file=sys.stderr)  # fmt: skip
    return 3


class _Parser(argparse.ArgumentParser):
    """One that says a mistake in one line; its usage is a --help away."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    """Every command with its options; each --help ends with an example."""
    parser = _Parser(
        prog="tolcal",
        description="Measures the error that correct GPU kernels really make, and calibrates "
        "a tolerance for each (op, dtype) from it.",
        epilog="Start with `tolcal new my_op`, `tolcal run --repeat 18` and `tolcal calibrate "
        "--history out/records.jsonl.gz`. Options default to [tool.tolcal] in pyproject.toml. "
        "Example: tolcal ci --device cpu",
    )
    parser.add_argument("--version", action="version", version=f"tolcal {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, module: str, function: str, text: str, example: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"Example: {example}",
        )
        sub.set_defaults(module=module, function=function)
        return sub

    run = command(
        "run", "measuring", "run",
        "run the corpus against its fp64 references and keep every error record",
        "tolcal run softmax --device cpu --cases 8 --out out/softmax.jsonl.gz",
    )  # fmt: skip
    options.add_measuring(run)
    run.add_argument("--out", default="out/records.jsonl.gz", metavar="R.jsonl.gz",
                     help="records file to write (default: %(default)s)")  # fmt: skip
    run.add_argument("--repeat", type=options.positive, default=1, metavar="N",
                     help="make N runs with fresh explore seeds")  # fmt: skip
    run.add_argument("--history", metavar="DIR", help="also add the records to this history")
    run.add_argument("--plan", action="store_true",
                     help="print what would run where, and run nothing")  # fmt: skip
    run.add_argument("--shard", type=options.shard, metavar="I/N",
                     help="only the I-th of N parts, which together are one run; needs "
                     "--seed")  # fmt: skip

    calibrate = command(
        "calibrate", "judging", "calibrate",
        "fit a tolerance for each (op, dtype) to a history",
        "tolcal calibrate --history out/records.jsonl.gz --json out/proposal.json",
    )  # fmt: skip
    options.add_history(calibrate)
    options.add_corpus(calibrate)
    calibrate.add_argument("--rule", choices=("residual", "paper"), default="residual",
                           help="residual: the joint fit (default); paper: p95 x 1.5 as "
                           "published")  # fmt: skip
    calibrate.add_argument("--by", choices=("op", "kernel"), default="op",
                           help="one tolerance per op (default) or per control")  # fmt: skip
    calibrate.add_argument("--margin", type=options.margin, default=None, metavar="M",
                           help="multiply the fitted bounds by M (default: by 1.5 to 6, each "
                           "control by what its tail asks for)")  # fmt: skip
    calibrate.add_argument("--budget", type=options.share, default=None, metavar="B",
                           help="share of runs that may be red for noise (default 0.001: 1 in "
                           "1,000)")  # fmt: skip
    calibrate.add_argument("--tolerances", metavar="F", help="the approved tolerances")
    calibrate.add_argument("--locked", action="append", metavar="DIR|FILE",
                           help="runs kept apart: judge them by the result; may be "
                           "repeated")  # fmt: skip
    calibrate.add_argument("--json", metavar="P.json", help="write the proposal there")
    options.add_reading(calibrate)
    calibrate.add_argument("--sweep", metavar="OUT",
                           help="also vary the knobs of both rules, whatever --rule: false alarms, "
                           "recall and tightness of every setting into OUT.parquet, tables into "
                           "OUT.md; into OUT/sweep.* if OUT is a folder")  # fmt: skip

    report = command(
        "report", "judging", "report",
        "render a proposal in any format",
        "tolcal report out/proposal.json --format comment",
    )  # fmt: skip
    report.add_argument("proposal", metavar="P.json", nargs="?",
                        help="a proposal, as `calibrate --json P.json` writes it")  # fmt: skip
    report.add_argument("--format", metavar="F",
                        help="comment, summary, html, json, sarif, junit, annotations or terminal "
                        "(default: terminal, or html with --open)")  # fmt: skip
    report.add_argument("--schema", action="store_true",
                        help="print the JSON Schema of P.json instead")  # fmt: skip
    report.add_argument("--out", metavar="F", help="write to this file")
    report.add_argument("--open", action="store_true",
                        help="write the HTML report (to --out, or as report.html beside P.json) "
                        "and show it in the browser")  # fmt: skip
    report.add_argument("--plots", metavar="DIR",
                        help="also write the main charts there, as SVG and PNG")  # fmt: skip

    ci = command(
        "ci", "measuring", "ci",
        "all of it, locally: run, calibrate, compare, report into a folder",
        "tolcal ci --device cpu",
    )  # fmt: skip
    options.add_measuring(ci)
    options.add_history(ci)
    ci.add_argument("--out", default="out", metavar="DIR",
                    help="folder for comment.md, report.html, proposal.json, records.jsonl.gz "
                    "(default: %(default)s)")  # fmt: skip

    approve = command(
        "approve", "judging", "approve",
        "write a proposal's new and tighter tolerances into tolerances.toml",
        "tolcal approve out/proposal.json",
    )  # fmt: skip
    approve.add_argument("proposal", metavar="P.json",
                         help="proposal of `tolcal calibrate --json` or `tolcal ci`")  # fmt: skip
    approve.add_argument("cells", nargs="*", metavar="OP[/DTYPE]", help="only these cells")
    approve.add_argument("--tolerances", metavar="F", help="the file to edit")
    approve.add_argument("--widen", metavar="REASON",
                         help="also take cells that would be looser, of those named; the reason "
                         "is recorded")  # fmt: skip
    approve.add_argument("--by", metavar="NAME", help="who approves (default: git's user.name)")

    show = command(
        "show", "showing", "show",
        "show what each tolerance is and what it rests on",
        "tolcal show softmax",
    )  # fmt: skip
    show.add_argument("op", nargs="?", metavar="OP[/DTYPE]", help="only this op, in full")
    show.add_argument("--approvals", action="store_true",
                      help="list who approved what, when, where and why")  # fmt: skip
    show.add_argument(
        "--markdown",
        action="store_true",
        help="list the corpus as a Markdown table: every kernel, what is wrong in it",
    )
    show.add_argument("--tolerances", metavar="F", help="the file to read")
    options.add_corpus(show)
    options.add_history(show)

    hook.add_check(command(
        "check", "tolcal.hook.commands", "check",
        "validate tolerances.toml, as the hook does",
        "tolcal check tolerances.toml",
    ))  # fmt: skip
    hook.add_format(command(
        "format", "tolcal.hook.commands", "reformat",
        "put tolerances.toml in canonical order and rounding; comments stay",
        "tolcal format tolerances.toml",
    ))  # fmt: skip

    replay = command(
        "replay", "measuring", "replay",
        "re-run one case and compare with its record, number by number",
        "tolcal replay rmsnorm_triton:9e1c02b7d4a8f655",
    )  # fmt: skip
    replay.add_argument("id", metavar="ID", help="KERNEL:CASE, or a case id for all its kernels")
    options.add_corpus(replay)
    options.add_history(replay)
    options.add_device(replay)
    replay.add_argument("--snippet", nargs="?", const="-", metavar="FILE",
                        help="also write the case as a script that needs no tolcal (without FILE: "
                        "to standard output, what replay says to standard error)")  # fmt: skip

    shrink = command(
        "minimize", "minimizing", "shrink",
        "make a failing case small: the fewest dims, elements and bits that still fail",
        "tolcal minimize rmsnorm_triton:9e1c02b7d4a8f655",
    )  # fmt: skip
    shrink.add_argument("id", metavar="KERNEL:CASE", help="as `tolcal replay` takes it")
    options.add_corpus(shrink)
    options.add_history(shrink)
    options.add_device(shrink)
    shrink.add_argument("--tolerances", metavar="F", help="the approved tolerances")
    shrink.add_argument("--budget-seconds", type=options.factor, default=60.0, metavar="S",
                        help="end the search after S seconds with the best so far (default: "
                        "60)")  # fmt: skip
    shrink.add_argument("--out", metavar="F.py",
                        help="script that fails as long as the kernel does, without tolcal "
                        "(default: out/minimize/KERNEL-CASE.py)")  # fmt: skip

    pin = command(
        "pin", "minimizing", "pin",
        "keep a failing case in its op.toml, so that every run measures it",
        "tolcal pin rmsnorm_triton:9e1c02b7d4a8f655 --why 'rows of one element'",
    )  # fmt: skip
    pin.add_argument("id", metavar="KERNEL:CASE", help="as `tolcal replay` takes it")
    pin.add_argument("--why", required=True, metavar="TEXT", help="what the case shows, in a line")
    options.add_corpus(pin)
    options.add_history(pin)

    _add_history_commands(command(
        "history", "keeping", "ls",
        "look after the set of records",
        "tolcal history verify --history out/history",
    ))  # fmt: skip

    new = command(
        "new", "keeping", "new",
        "scaffold an op folder that runs as it stands",
        "tolcal new my_op && tolcal run my_op --device cpu --cases 4",
    )  # fmt: skip
    new.add_argument("op", metavar="OP", help="name: lower case, digits and underscores")
    options.add_corpus(new)

    _add_github_commands(command(
        "github", "hosting", "github",
        "report, approve and keep history on pull requests: what action.yml starts",
        "tolcal github report --history artifact",
    ))  # fmt: skip
    return parser


def _add_github_commands(github: argparse.ArgumentParser) -> None:
    modes = github.add_subparsers(dest="mode", required=True, metavar="MODE")
    for name, text in (
        ("report", "judge a pull request's records, and say it in its comment and check"),
        ("command", "carry out a maintainer's /tolcal comment"),
        ("ingest", "add this run's records to the trusted history"),
    ):
        sub = modes.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}. Runs as a step of a workflow: the token is "
            "read from TOLCAL_TOKEN, the rest of what it needs from GitHub's own variables.",
            epilog=f"Example: tolcal github {name} --history artifact",
        )
        options.add_corpus(sub)
        sub.add_argument("--tolerances", metavar="F", help="the approved tolerances")
        sub.add_argument("--history", metavar="artifact|branch|PATH",
                         help="where the trusted history is (default: artifact)")  # fmt: skip
        sub.add_argument("--history-branch", metavar="B",
                         help="branch of `--history branch` (default: tolcal-history)")  # fmt: skip
        sub.add_argument("--rule", choices=("residual", "paper"), help="see `calibrate --rule`")
        sub.add_argument("--fail-on", metavar="WHAT",
                         help="regression (default), drift, false-positive, check-failed, by "
                         "commas; or never")  # fmt: skip
        sub.add_argument("--comment", action=argparse.BooleanOptionalAction, default=None,
                         help="write the pull request's comment (default: yes)")  # fmt: skip
        sub.add_argument("--out", metavar="DIR", help="folder for the report (default: out)")
        sub.add_argument("--run-workflow", metavar="F",
                         help="workflow whose records a report reads (default: "
                         ".github/workflows/tolcal.yml)")  # fmt: skip
        sub.add_argument("--ingest-workflow", metavar="F",
                         help="workflow whose history is trusted (default: "
                         ".github/workflows/tolcal-ingest.yml)")  # fmt: skip
        sub.add_argument("--tighten-permission", choices=("write", "maintain", "admin"),
                         help="least permission to approve a tightening (default: "
                         "write)")  # fmt: skip
        sub.add_argument("--widen-permission", choices=("maintain", "admin"),
                         help="least permission to approve a widening (default: "
                         "maintain)")  # fmt: skip
        sub.add_argument("--self-approval", action=argparse.BooleanOptionalAction, default=None,
                         help="let authors widen for their own pull request; the comment says so "
                         "(default: no)")  # fmt: skip


def _add_history_commands(history: argparse.ArgumentParser) -> None:
    verbs = history.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, text, more in (
        ("ls", "list runs: when, where, how many records", ""),
        (
            "verify", "read every shard and check it",
            " Damage, a lost shard or an impossible record is exit status 2 and one line.",
        ),
        (
            "compact", "put all shards of a history folder into one",
            " No record is lost, whenever it is interrupted; single files stay as they are.",
        ),
    ):  # fmt: skip
        sub = verbs.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.{more}",
            epilog=f"Example: tolcal history {name} --history out/history",
        )
        sub.set_defaults(module="keeping", function=name)
        options.add_history(sub)
    summarize = verbs.add_parser(
        "summarize",
        help="keep of each run what calibration needs",
        description="Summarise a history: per run the controls' envelopes and a sample of buggy "
        "rows, a hundredth of the records' size. `calibrate --history` reads summaries and records "
        "together. Runs that the summary has are not read again.",
        epilog="Example: tolcal history summarize --history out/history --out out/summary",
    )
    summarize.set_defaults(module="summarizing", function="summarize")
    options.add_history(summarize)
    summarize.add_argument("--out", required=True, metavar="S.parquet|DIR",
                           help="the summary: a file, written anew, or a folder, to which a file "
                           "is added")  # fmt: skip
    options.add_reading(summarize)
    summarize.add_argument("--bits", type=options.bits, default=24, metavar="B",
                           help="significant bits of numbers, 8 to 24 (default: all); the "
                           "controls' are rounded up")  # fmt: skip
    importer = verbs.add_parser(
        "import",
        help="take in results of other tools",
        description="Take result files of the published format (run-*/results.jsonl) into a "
        "history. Importing the same files again changes nothing.",
        epilog="Example: tolcal history import gpuemu results/ --history out/imported",
    )
    importer.set_defaults(module="keeping", function="import_foreign")
    importer.add_argument("format", choices=("gpuemu",),
                          help="gpuemu: what the authors of arXiv 2607.16228 publish")  # fmt: skip
    importer.add_argument("folder", metavar="DIR",
                          help="folder that holds the run-*/results.jsonl")  # fmt: skip
    importer.add_argument("--history", metavar="DIR",
                          help="history to add to (default: the configured one)")  # fmt: skip
    importer.add_argument("--device", default="unknown", metavar="NAME",
                          help="the device that the results were measured on")  # fmt: skip
    options.add_corpus(importer)
