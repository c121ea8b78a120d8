"""Findings and cells as JUnit XML, for the dashboards of CI systems.

A suite an op; in it a test case for each cell and one for each finding. What blocks has failed (a
crash is an error), what is uncalibrated was skipped, and the rest has passed, with its words as
output: a dashboard must not go red where the job does not.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from tolcal.model import CellProposal, Finding, one_line
from tolcal.report import findings, text
from tolcal.report.document import Document

COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def render(document: Document) -> str:
    """The whole file, suites and cases by name."""
    verdict = document.verdict
    root = ET.Element("testsuites", name="tolcal")
    cells: dict[str, list[CellProposal]] = {}
    for cell in sorted(document.proposal.cells, key=lambda c: (c.dtype, c.kernel or "")):
        cells.setdefault(cell.op, []).append(cell)
    found: dict[str, list[Finding]] = {}
    for finding in sorted(verdict.findings if verdict else (), key=_name):
        found.setdefault(finding.op, []).append(finding)
    for op in sorted({*cells, *found}):
        suite = ET.SubElement(root, "testsuite", name=one_line(op, 80))
        for cell in cells.get(op, ()):
            _cell(suite, cell)
        for finding in found.get(op, ()):
            _finding(suite, finding)
        _count(suite)
    _count(root)
    root.attrib.pop("skipped")  # which <testsuites> does not have
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _name(finding: Finding) -> tuple[str, str, str]:
    return finding.kernel, finding.dtype, finding.kind


def _case(suite: ET.Element, op: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=f"tolcal.{one_line(op, 80)}", name=name)


def _cell(suite: ET.Element, cell: CellProposal) -> None:
    of = f"{one_line(cell.kernel, 80)} " if cell.kernel else ""
    case = _case(suite, cell.op, f"tolerance of {of}{one_line(cell.dtype, 20)}")
    if cell.allowed_proposed is None:
        reason = one_line(cell.note, 400) or "uncalibrated"
        ET.SubElement(case, "skipped", message=reason)
        return
    held = text.held_out_claim(cell.held_out.runs_with_false_alarms, cell.held_out.runs)
    ET.SubElement(case, "system-out").text = (
        f"{cell.state}: {text.scientific(cell.allowed_now)} allowed at the median element, "
        f"{text.scientific(cell.allowed_proposed)} proposed; {held}"
    )


def _finding(suite: ET.Element, finding: Finding) -> None:
    f = finding
    case = _case(suite, f.op, f"{one_line(f.kernel, 80)} {one_line(f.dtype, 20)}: {f.kind}")
    if f.kind == "uncalibrated":
        ET.SubElement(case, "skipped", message=one_line(f.detail, 400) or f.kind)
        return
    sentence = findings.sentence(f)
    where = findings.place(f)
    whole = sentence if where is None else one_line(f"{where[0]}:{where[1]}: {sentence}", 1600)
    if f.blocks:
        name = "error" if f.kind == "crashed" else "failure"
        ET.SubElement(case, name, type=f.kind, message=sentence).text = whole
    else:
        ET.SubElement(case, "system-out").text = whole


def _count(element: ET.Element) -> None:
    element.set("tests", str(len(element.findall(".//testcase"))))
    for tag, attribute in COUNTED.items():
        element.set(attribute, str(len(element.findall(f".//testcase/{tag}"))))
