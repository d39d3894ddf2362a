"""The notebook runs from its first cell to its last, on the model of the repository."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("matplotlib")

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "memory_saved.ipynb"


def test_the_notebook_runs_and_draws(monkeypatch):
    monkeypatch.delenv("TQKV_MODEL", raising=False)
    # Waiting threads of PyTorch take the processor from ours.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code), "commit it without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": NOTEBOOK.parent}}).execute()
    outputs = [output for cell in code for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    text = "".join(output.get("text", "") for output in outputs if output.get("name") == "stdout")
    assert "times fewer than f16 takes" in text
    # i8 shows no loss and t2 does, so the notebook draws measured numbers.
    kl = {line.split()[0]: float(line.split()[-1]) for line in text.splitlines() if ", KL " in line}
    assert kl["i8"] < 1e-4 < kl["t2"] < 1
