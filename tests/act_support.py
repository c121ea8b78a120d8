"""The workflows as users copy them, run by ``act`` on this machine.

act (github.com/nektos/act) runs the steps on the host. It is not GitHub: it enforces neither
permissions nor concurrency, it does the checkout itself (a copy of the repository's folder), and
the upload of artifacts is a stand-in that copies files.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from action_support import copy_action, wheelhouse
from tests_support import ROOT

#: What stands in the documentation as OWNER/tolcal@FULL_SHA.
ACTION = f"octo/tolcal@{'a1' * 20}"
WORKFLOWS = ("tolcal.yml", "tolcal-report.yml", "tolcal-command.yml", "tolcal-ingest.yml")
UPLOAD = """\
name: a stand-in for actions/upload-artifact
inputs:
  name: { required: true }
  path: { required: true }
  if-no-files-found: { default: warn }
  compression-level: { default: "6" }
  retention-days: { default: "90" }
  overwrite: { default: "false" }
runs:
  using: composite
  steps:
    - shell: bash
      run: |
        mkdir "$UPLOADS/$NAME"
        if [ -d "$FILES" ]; then FILES="$FILES/."; fi
        cp -r "$FILES" "$UPLOADS/$NAME/"
      env:
        NAME: ${{ inputs.name }}
        FILES: ${{ inputs.path }}
"""


def copy_workflows(repository: Path, wheels: Path) -> None:
    """The four files, as README says, with this machine's Python and wheelhouse as inputs."""
    folder = repository / ".github" / "workflows"
    folder.mkdir(parents=True)
    for name in WORKFLOWS:
        text = (ROOT / ".github" / "workflows" / name).read_text()
        text = text.replace("uses: ./\n", f"uses: {ACTION}\n")
        # act knows it as little as an older GitHub Enterprise Server, where it is to be taken out.
        text = re.sub(r"^ +queue: max\n", "", text, flags=re.MULTILINE)
        inputs = f"python: {sys.executable}\n\\1wheelhouse: {wheels}\n"
        text = re.sub(r"^( +)(mode: \w+)\n", rf"\1\2\n\1{inputs}", text, flags=re.MULTILINE)
        (folder / name).write_text(text)


class Act:
    """act, the action's folder, the wheelhouse, and where artifacts go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.action = copy_action(folder / "action")
        self.wheels = wheelhouse(folder / "wheels", built=True)
        self.uploads = folder / "uploads"
        self.uploads.mkdir()
        stub = folder / "stubs" / "upload-artifact"
        stub.mkdir(parents=True)
        (stub / "action.yml").write_text(UPLOAD)
        self.stubs = {"actions/upload-artifact": stub, "actions/checkout": stub}
        self.log = ""
        self.count = itertools.count()

    def _replaced(self) -> list[str]:
        """``--local-repository`` of every action that the workflows name."""
        texts = "".join((ROOT / ".github" / "workflows" / n).read_text() for n in WORKFLOWS)
        found = set(re.findall(r"uses: (actions/[\w-]+)@([0-9a-f]{40})", texts))
        options = [f"{name}@{pin}={self.stubs[name]}" for name, pin in sorted(found)]
        return [f"--local-repository={o}" for o in [f"{ACTION}={self.action}", *options]]

    def __call__(
        self,
        repository: Path,
        workflow: str,
        event: str,
        payload: Mapping[str, Any],
        token: str = "a-token",
        **environment: str,
    ) -> int:
        """Exit status of one event for one workflow; ``log`` holds what was printed."""
        path = self.folder / "event.json"
        path.write_text(json.dumps(payload))
        command = [
            str(Path(sys.executable).parent / "act"), event,
            "-W", f".github/workflows/{workflow}", "-e", str(path),
            "-P", "self-hosted=-self-hosted", "-P", "ubuntu-latest=-self-hosted",
            "--no-cache-server", "-s", f"GITHUB_TOKEN={token}", *self._replaced(),
            *(f"--env={name}={value}" for name, value in
              {"UPLOADS": str(self.uploads), **environment}.items()),
        ]  # fmt: skip
        env = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder / "home"),
            "XDG_CACHE_HOME": str(self.folder / "cache"), "PIP_NO_INDEX": "1",
        }  # fmt: skip
        done = subprocess.run(
            command, cwd=repository, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=300,
        )  # fmt: skip
        self.log = done.stdout
        return done.returncode

    def taken(self) -> dict[str, dict[str, bytes]]:
        """The artifacts since the last call: name -> path in it -> bytes."""
        found: dict[str, dict[str, bytes]] = {}
        for artifact in sorted(self.uploads.iterdir()):
            files = [path for path in artifact.rglob("*") if path.is_file()]
            found[artifact.name] = {str(p.relative_to(artifact)): p.read_bytes() for p in files}
            for path in files:
                path.unlink()
            artifact.rename(
                self.folder / f"taken-{artifact.name}-{len(list(self.folder.iterdir()))}"
            )
        return found
