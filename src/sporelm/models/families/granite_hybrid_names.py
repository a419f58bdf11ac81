"""What files call the weights of Granite 4."""

from sporelm.checkpoints.forms import ffn_rows, stacked
from sporelm.checkpoints.tensor_names import Names, Stored, changed
from sporelm.models.families import granitemoe
from sporelm.models.families.granitemoe import SHARED
from sporelm.models.families.space_fields import space_names

DENSE = tuple(
    Names(
        f"layers.{{}}.ffn_{part}.weight",
        f"blk.{{}}.ffn_{part}.weight",
        Stored(f"{SHARED}input_linear.weight", rows=stacked(number, ffn_rows, ffn_rows)),
    )
    for number, part in enumerate(("gate", "up"))
)
DOWN = Names("layers.{}.ffn_down.weight", "blk.{}.ffn_down.weight", f"{SHARED}output_linear.weight")
NAMES = changed(granitemoe.NAMES, *DENSE, DOWN, *space_names("model.layers.{}.mamba."))
