"""SoftHSM2: a PKCS#11 library whose tokens are folders. One for each process of tests."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
PIN = "pin-of-tests-4711"
_TOOL = "softhsm2-util"


class SoftHsm:
    """A SoftHSM2 with tokens below a folder.

    The library reads where they lie when it starts: make this before anything loads it.

    Args:
        folder: an empty folder.

    """

    def __init__(self, folder: Path) -> None:
        if shutil.which(_TOOL) is None or not MODULE.is_file():
            raise RuntimeError("SoftHSM2 is missing; install the package softhsm2")
        self._folder = folder
        (folder / "tokens").mkdir()
        configuration = folder / "softhsm2.conf"
        configuration.write_text(f"directories.tokendir = {folder / 'tokens'}\nlog.level = ERROR\n")
        self.variables = {"SOFTHSM2_CONF": str(configuration)}
        os.environ.update(self.variables)

    def create_token(self) -> str:
        """Initialise a token; its label."""
        label = f"token-{secrets.token_hex(4)}"
        # The tool's own switch shows the PIN to other users; a test's PIN is no secret.
        subprocess.run(  # noqa: S603 - our own words
            [
                _TOOL,
                "--init-token",
                "--free",
                "--label",
                label,
                "--so-pin",
                "87654321",
                "--pin",
                PIN,
            ],
            env={**os.environ, **self.variables},
            check=True,
            capture_output=True,
            timeout=30,
        )
        return label

    def notice_tokens(self) -> None:
        """Make this process see the tokens that there are now; its sessions end."""
        import pkcs11  # noqa: PLC0415 - only tests of an HSM load it

        pkcs11.lib(str(MODULE)).reinitialize()

    def pin_file(self, pin: str = PIN) -> Path:
        """A new private file with a PIN."""
        path = self._folder / f"pin-{secrets.token_hex(4)}"
        path.write_text(f"{pin}\n")
        path.chmod(0o600)
        return path

    @contextmanager
    def no_tokens(self) -> Iterator[None]:
        """Take all tokens out for a while."""
        tokens, elsewhere = self._folder / "tokens", self._folder / "taken out"
        tokens.rename(elsewhere)
        tokens.mkdir()
        yield
        tokens.rmdir()
        elsewhere.rename(tokens)
