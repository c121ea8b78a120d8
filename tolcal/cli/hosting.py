"""``tolcal github``: what action.yml starts in the trusted jobs."""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

from tolcal.cli import config
from tolcal.github import settings
from tolcal.model import TolcalError


def github(args: argparse.Namespace) -> int:
    """``tolcal github report|command|ingest``: exit status as everywhere."""
    given = inputs(args)
    token = os.environ.get("TOLCAL_TOKEN") or os.environ.get("GITHUB_TOKEN", "")
    if not token:
        raise TolcalError("TOLCAL_TOKEN is not set: give the action its `token` input")
    job = settings.job(os.environ)
    module = importlib.import_module(f"tolcal.github.{args.mode}")
    status: int = module.main(given, job, token)
    return status


def inputs(args: argparse.Namespace) -> settings.Inputs:
    """Options over ``[tool.tolcal]``: corpus, tolerances and budget are those on a laptop."""
    given = {
        name: getattr(args, name)
        for name in settings.Inputs.__struct_fields__
        if getattr(args, name, None) is not None
    }
    if "fail_on" in given:
        given["fail_on"] = fail_on(given["fail_on"])
    if "out" in given:
        given["out"] = Path(given["out"])
    paths = config.load(argparse.Namespace(corpus=args.corpus, tolerances=args.tolerances))
    given["corpus"], given["tolerances"] = paths.corpus.as_posix(), paths.tolerances.as_posix()
    given["budget"] = paths.budget
    return settings.Inputs(**given)


def fail_on(text: str) -> tuple[str, ...]:
    """``regression,drift`` as a tuple of `settings.FAIL_ON`."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    wrong = [word for word in words if word not in settings.FAIL_ON]
    if wrong or not words or ("never" in words and len(words) > 1):
        raise TolcalError(
            f"--fail-on {text}: known are {', '.join(settings.FAIL_ON)}, several by commas, "
            "`never` alone"
        )
    return words
