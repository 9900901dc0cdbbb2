"""What pyproject.toml cannot say: the wheel holds the workflow too, as the template of `probmetric init`."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
TEMPLATE = ("Snakefile", "params.yaml", ".gitignore", "workflow")


class WithTemplate(build_py):
    """Copies the repository's own files into the package that is built."""

    def run(self) -> None:
        """Build, then add the template."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "probmetric" / "template"
        for name in TEMPLATE:
            place = ROOT / name
            for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
                copy = target / path.relative_to(ROOT)
                if path.is_file() and "__pycache__" not in path.parts:
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    self.copy_file(str(path), str(copy))


setup(cmdclass={"build_py": WithTemplate})
