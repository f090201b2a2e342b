"""Hatchling's build hook: puts the compiled decoder into the wheel, which then fits one kind of machine.

Where it cannot be compiled, the wheel is a pure one without it, and the trainers decode with torchvision;
TRAINYARD_NATIVE=required makes that an error. An editable install keeps its decoder in the cache instead.
"""

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DecoderHook(BuildHookInterface):  # type: ignore[misc]
    """Compiles the decoder before a wheel is packed."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatchling of the file and of the wheel's kind."""
        if version == "editable":
            return
        native = Path(self.root) / "src/trainyard/native"
        out = Path(self.directory) / "jpeg.so"
        why = runpy.run_path(str(native / "compile.py"))["compile_library"](out)
        if why and os.environ.get("TRAINYARD_NATIVE") == "required":
            raise RuntimeError(f"the JPEG decoder cannot be compiled; needed are gcc and libjpeg-dev:\n{why}")
        if why:
            self.app.display_warning(f"without the JPEG decoder in C; it takes gcc and libjpeg-turbo's headers:\n{why}")
            return
        build_data["force_include"][str(out)] = "trainyard/native/jpeg.so"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leave the wheel alone in its folder."""
        (Path(self.directory) / "jpeg.so").unlink(missing_ok=True)
