"""Compiles the inner loops of `manigraph.native`, if there is a C compiler; everything works without them."""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the shared libraries to wheels and to editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, or say why not."""
        compiling = self._compiling()
        try:
            libraries = compiling.compile_all()
        except compiling.NotCompiledError as reason:
            self.app.display_warning(f"manigraph will use torch's own operations only: {reason}")
            return
        build_data["artifacts"] += [str(library.relative_to(self.root)) for library in libraries]
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _compiling(self) -> Any:
        """The module itself: the package around it needs torch, which is not there while it is built."""
        file = Path(self.root, "src", "manigraph", "native", "compiling.py")
        spec = importlib.util.spec_from_file_location("compiling", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
