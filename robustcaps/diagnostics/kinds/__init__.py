"""The kinds of diagnostics, one file each; importing the package registers them."""

from robustcaps.diagnostics.kinds import verdict as verdict  # noqa: I001  the order of tables, figures and sections
from robustcaps.diagnostics.kinds import gradients as gradients
from robustcaps.diagnostics.kinds import detection as detection
from robustcaps.diagnostics.kinds import overlap as overlap
from robustcaps.diagnostics.kinds import viewpoints as viewpoints
from robustcaps.diagnostics.kinds import routing as routing
from robustcaps.diagnostics.kinds import certify as certify
