"""``tolcal check`` and ``tolcal format``, and the scripts that start them without the rest."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tolcal import hook, tomlfile
from tolcal.model import TolcalError, one_line, plural

#: Findings printed of one file.
MOST = 200


def add_check(parser: argparse.ArgumentParser) -> None:
    """The options of ``tolcal check``."""
    parser.add_argument("files", nargs="*", metavar="F", help="files (default: tolerances.toml)")
    parser.add_argument("--fix", action="store_true",
                        help="first mend what is safe: order, rounding, cells of ops that are "
                        "gone")  # fmt: skip
    parser.add_argument("--base", metavar="REF",
                        help="compare with the merge base of HEAD and REF (default: the default "
                        "branch)")  # fmt: skip
    parser.add_argument("--corpus", metavar="DIR", help="folder of op folders")
    parser.add_argument("--schema", action="store_true",
                        help="print the JSON Schema of the file and check nothing")  # fmt: skip


def add_format(parser: argparse.ArgumentParser) -> None:
    """The options of ``tolcal format``."""
    parser.add_argument("files", nargs="*", metavar="F", help="files (default: tolerances.toml)")


def check(args: argparse.Namespace) -> int:
    """``tolcal check``."""
    if args.schema:
        import json

        from tolcal.hook.schema import json_schema

        print(json.dumps(json_schema(), indent=2))
        return 0
    corpus = Path(args.corpus) if args.corpus else None
    return run_check(_paths(args), args.fix, args.base, corpus)


def reformat(args: argparse.Namespace) -> int:
    """``tolcal format``."""
    return run_format(_paths(args))


def run_check(paths: list[Path], fixing: bool, base: str | None, corpus: Path | None) -> int:
    """``tolcal check``: prints findings; 1 if any is an error, 2 if a file can't be judged."""
    status = 0
    for path in paths:
        try:
            if fixing:
                changed, gone = hook.fix(path, corpus)
                if gone:
                    what = f"dropped {plural(len(gone), 'cell')} of ops that are gone"
                    print(one_line(f"{path}: {what}: {hook.names(gone)}", 2000))
                if changed:
                    print(f"{one_line(str(path), 500)}: put in order")
            findings = hook.check(path, base=base, corpus=corpus)
        except TolcalError as error:
            status = max(status, _refused(error))
            continue
        for finding in findings[:MOST]:
            print(finding.text)
        if len(findings) > MOST:
            print(f"{one_line(str(path), 500)}: and {plural(len(findings) - MOST, 'finding')} more")
        if any(finding.level == "error" for finding in findings):
            status = max(status, 1)
    return status


def run_format(paths: list[Path]) -> int:
    """``tolcal format``: puts files in order; 1 if one can't be, 2 if one can't be read."""
    status = 0
    for path in paths:
        try:
            if hook.order(path):
                print(f"{one_line(str(path), 500)}: put in order")
        except TolcalError as error:
            status = max(status, _refused(error))
    return status


def _refused(error: TolcalError) -> int:
    """Says why a file was not judged or ordered: 1 if the file says so itself, else 2."""
    if isinstance(error, tomlfile.NotTomlError):
        print(error)
        return 1
    print(f"tolcal: {error}", file=sys.stderr)
    return 2


def _paths(args: argparse.Namespace) -> list[Path]:
    return [Path(name) for name in args.files] or [Path("tolerances.toml")]


def check_script() -> None:
    """The console script ``tolcal-check``."""
    parser = argparse.ArgumentParser(
        prog="tolcal-check",
        description="Validates tolerances.toml.",
        epilog="Example: tolcal-check --base origin/main tolerances.toml",
    )
    add_check(parser)
    _leave(check, parser)


def format_script() -> None:
    """The console script ``tolcal-format``."""
    parser = argparse.ArgumentParser(
        prog="tolcal-format",
        description="Orders tolerances.toml.",
        epilog="Example: tolcal-format tolerances.toml",
    )
    add_format(parser)
    _leave(reformat, parser)


def _leave(command: Callable[[argparse.Namespace], int], parser: argparse.ArgumentParser) -> None:
    gc.disable()  # a short life: collecting costs a tenth of it
    try:
        status = command(parser.parse_args())
        sys.stdout.flush()
    except TolcalError as error:
        print(f"tolcal: {error}", file=sys.stderr)
        status = 2
    except BrokenPipeError:  # `tolcal-check | head`: the reader has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"tolcal: {where}{error.strerror or error}; check path, rights and space",
              file=sys.stderr)  # fmt: skip
        status = 2
    sys.stderr.flush()
    os._exit(status)  # without taking apart what was parsed, which takes longer than judging it
