"""``/tolcal ...`` on a pull request: `parse` what is asked, `people` who may, `carry_out` the rest.

`committing` writes, `finding` looks up earlier commands and says why a digest is stale, `replies`
has the words.
"""
