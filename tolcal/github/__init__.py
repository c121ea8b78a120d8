"""tolcal on GitHub: the trusted jobs that read what untrusted ones measured.

``tolcal github report``, ``command`` and ``ingest`` are what ``action.yml`` starts. None of them
imports torch, checks out a pull request or believes more of an artifact than its records.
"""
