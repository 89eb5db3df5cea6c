"""Run the notebook of the examples and save it with its outputs: python tools/run_notebook.py"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_run.ipynb"


def run_notebook(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in a new kernel; the first cell that fails raises its error."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=None, kernel_name="python3").execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of the clock
        if cell.cell_type == "code":  # warnings of libraries name paths of this machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOK
    nbformat.write(run_notebook(chosen), chosen)
