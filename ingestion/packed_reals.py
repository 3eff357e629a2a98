"""ROOT's packed reals, Float16_t and Double32_t, as ROOT reads them.

uproot reads a list or an array `Jet_PT[nJet]/d[0,4000,24]` as zeros, since it takes the first
brackets for the range. The range of a branch is found, and its numbers are unpacked, as in ROOT's
TStreamerElement (`GetRange`) and TBufferFile (`ReadWithFactor`, `ReadWithNbits`).
"""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple

import awkward as ak
import numpy as np
import uproot
from numpy.typing import NDArray
from uproot.interpretation import Interpretation
from uproot.interpretation.identify import UnknownInterpretation
from uproot.interpretation.jagged import AsJagged
from uproot.interpretation.numerical import AsDtype
from uproot.models.RNTuple import RField
from uproot.streamers import Model_TStreamerElement

#: C++ types of packed reals by ROOT's class of a leaf.
_LEAVES: Final = {"TLeafF16": "Float16_t", "TLeafD32": "Double32_t"}
#: C++ types by ROOT's number of the type of a member of a class. Of arrays of a fixed size the
#: number is 20 higher (`kOffsetL`), of lists of a counted size 40 higher (`kOffsetP`).
_MEMBERS: Final = {uproot.const.kFloat16: "Float16_t", uproot.const.kDouble32: "Double32_t"}
_VECTOR: Final = re.compile(r"(?:std::)?vector<(Float16_t|Double32_t)>")
#: Bytes before the numbers of an entry: 1 says whether an array is there; 10 are size, version and
#: length of a std::vector.
_ARRAY_HEADER: Final = 1
_VECTOR_HEADER: Final = 10
#: Bits of the mantissa of a float, and of a Float16_t without a number of bits in its title.
_FLOAT_BITS: Final = 23
_HALF_BITS: Final = 12
#: Bits of a packed integer whose title names none.
_ALL_BITS: Final = 32
#: From this number of bits on, and without a range, ROOT writes a float.
_MIN_FLOAT_BITS: Final = 15
#: Reals without a range: one byte of the exponent, two bytes of sign and rounded mantissa.
_EXPONENT_AND_MANTISSA: Final = np.dtype([("exponent", "u1"), ("mantissa", ">u2")])
_BRACKETS: Final = re.compile(r"\[([^\]]*)\]")
_PI_VALUES: Final = {
    "2pi": 2 * math.pi,
    "2*pi": 2 * math.pi,
    "twopi": 2 * math.pi,
    "pi/2": math.pi / 2,
    "pi/4": math.pi / 4,
    "pi": math.pi,
}
_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")


class Packing(NamedTuple):
    """How reals of a branch are packed.

    With a range they are integers, which count steps above `low`. Without a range they are an
    exponent and a mantissa of `num_bits` bits.
    """

    low: float = 0.0
    """Lower limit of the range."""
    steps_per_unit: float = 0.0
    """Packed integers per unit above `low`; 0 without a range."""
    num_bits: int = 0
    """Bits of the mantissa of numbers without a range; 0 for those of the type."""


def packing_in(title: str) -> Packing:
    """The packing in the title of a branch, or the comment of a member: `[low,high,bits]`.

    The first brackets may be the size of an array; then the second have the packing. ROOT reads no
    further brackets.

    Examples:
        >>> packing_in("Jet_PT[nJet]/d[0,4096,12]")
        Packing(low=0.0, steps_per_unit=1.0, num_bits=0)
        >>> packing_in("Jet_PT[nJet]/d[0,0,14]").num_bits
        14
    """
    brackets: list[str] = _BRACKETS.findall(title)[:2]
    # A size has no comma.
    ranges = [text for text in brackets if "," in text]
    if not ranges:
        return Packing()
    low_text, high_text, *bits_text = ranges[0].split(",", 2)
    low, high = _limit(low_text), _limit(high_text)
    num_bits = _ALL_BITS
    if bits_text:
        bits_match = re.match(r"\s*(\d+)", bits_text[0])
        stated_bits = int(bits_match[1]) if bits_match else 0
        if 2 <= stated_bits <= _ALL_BITS:
            num_bits = stated_bits
    if low < high:
        # As in ROOT, 32 bits count to 2**32 - 1, fewer bits to 2**num_bits.
        num_steps = 2**num_bits
        if num_bits == _ALL_BITS:
            num_steps -= 1
        return Packing(low, num_steps / (high - low))
    # Limits such as [0,0,14] give no range, only the number of bits.
    if num_bits < _MIN_FLOAT_BITS:
        return Packing(num_bits=num_bits)
    return Packing()


def _limit(text: str) -> float:
    """A limit of a range: a number, or pi with a factor (`-2*pi`); 0 for any other text."""
    plain = text.lower().replace(" ", "")
    for name, value in _PI_VALUES.items():
        if name in plain:
            return -value if "-" in plain else value
    number_match = _NUMBER.match(plain)
    return float(number_match[0]) if number_match else 0.0


class AsPackedReals(AsDtype):  # type: ignore[misc] # uproot has no types
    """Unpacks the reals of a branch, as uproot's interpretation of the bytes of its baskets.

    In the file the numbers are big-endian: integers with a range, pairs of exponent and mantissa,
    or plain floats. The result is float32 for Float16_t and float64 for Double32_t.
    """

    def __init__(self, typename: str, packing: Packing, sizes: tuple[int, ...] = ()) -> None:
        """Choose the layout in the file by type and packing.

        `sizes` are the dimensions of the array of a fixed size in each entry; empty for one number.
        """
        self._packing = packing
        packed: np.dtype[Any] = np.dtype(">f4")
        if packing.steps_per_unit:
            packed = np.dtype(">u4")
        elif typename == "Float16_t" or packing.num_bits:
            packed = _EXPONENT_AND_MANTISSA
            self._packing = packing._replace(num_bits=packing.num_bits or _HALF_BITS)
        real = np.dtype("f4" if typename == "Float16_t" else "f8")
        self._typename = typename
        type_in_file = np.dtype((packed, sizes))
        type_of_result = np.dtype((real, sizes))
        super().__init__(type_in_file, type_of_result)

    @property
    def typename(self) -> str:
        """The type in C++."""
        return self._typename

    @property
    def cache_key(self) -> str:
        """A key that differs from those of other interpretations."""
        return f"{type(self).__name__}({self._typename},{self._packing},{self.to_dtype})"

    def basket_array(self, *args: Any) -> NDArray[np.floating]:
        """The unpacked numbers of a basket; the arguments are those of uproot's base class."""
        # The base class gives the numbers as they are in the file: only pairs of exponent and
        # mantissa have named fields.
        packed: NDArray[Any] = super().basket_array(*args)
        packing = self._packing
        numbers: NDArray[Any] = packed
        if packed.dtype.names:
            numbers = _unpack_floats(packed, packing.num_bits)
        elif packing.steps_per_unit:
            height_above_low = packed / packing.steps_per_unit
            numbers = packing.low + height_above_low
        real: np.dtype[np.floating] = self.to_dtype.base
        return numbers.astype(real)


def _unpack_floats(packed: NDArray[Any], num_bits: int) -> NDArray[np.float32]:
    """Build floats from exponents and mantissas of `num_bits` bits.

    Bits are counted from the lowest, 0: of the two bytes of the mantissa, those up to bit
    `num_bits` are the mantissa, and bit `num_bits` + 1 is the sign.
    """
    exponent = packed["exponent"].astype(np.uint32)
    mantissa = packed["mantissa"].astype(np.uint32)
    sign_bit = np.uint32(1 << (num_bits + 1))
    mantissa_bits = (mantissa & (sign_bit - 1)) << (_FLOAT_BITS - num_bits)
    # The bits are moved to the place of the mantissa in a float32, below the exponent.
    magnitude = ((exponent << _FLOAT_BITS) | mantissa_bits).view(np.float32)
    return np.where(mantissa & sign_bit, -magnitude, magnitude)


def read_branch(branch: Any, first: int | None = None, last: int | None = None) -> ak.Array:
    """Entries `first` to `last` (exclusive) of a branch of a TTree, or a field of an RNTuple."""
    entries = {"entry_start": first, "entry_stop": last}
    if isinstance(branch, RField):
        return branch.array(**entries)
    return branch.array(interpretation=packed_reals(branch) or branch.interpretation, **entries)


def packed_reals(branch: Any) -> Interpretation | None:
    """The interpretation of a branch of packed reals of an open TTree; None for another type.

    A branch with several leaves or branches below it has no interpretation of its own.
    """
    leaves = branch.member("fLeaves")
    if len(leaves) != 1 or len(branch.branches):
        return None
    (leaf,) = leaves
    if leaf.classname in _LEAVES:
        return _leaf_interpretation(_LEAVES[leaf.classname], leaf, leaf.member("fTitle"))
    if leaf.classname == "TLeafElement":
        return _member_interpretation(branch, leaf)
    return None


def _member_interpretation(branch: Any, leaf: Any) -> Interpretation | None:
    """The interpretation of a branch that is a member of a class, or a vector.

    The streamer, ROOT's description of the class in the file, has the packing in the comment of the
    member. Returns None if the member is no packed real.

    Raises:
        UnknownInterpretation: The member is a packed real, but the file does not describe it.
    """
    streamer = branch.streamer
    is_described = isinstance(streamer, Model_TStreamerElement)
    comment = str(streamer.title) if is_described else ""
    member_type = leaf.member("fType")
    fixed_type = member_type - uproot.const.kOffsetL
    list_type = member_type - uproot.const.kOffsetP
    if not is_described and not _MEMBERS.keys().isdisjoint({member_type, fixed_type, list_type}):
        raise UnknownInterpretation(
            "no range without a streamer", branch.file.file_path, branch.object_path
        )
    if member_type in _MEMBERS:
        return _leaf_interpretation(_MEMBERS[member_type], leaf, comment)
    if fixed_type in _MEMBERS:
        return _leaf_interpretation(_MEMBERS[fixed_type], leaf, comment)
    if list_type in _MEMBERS:
        numbers = AsPackedReals(_MEMBERS[list_type], packing_in(comment))
        return AsJagged(numbers, header_bytes=_ARRAY_HEADER)
    typename = streamer.typename if is_described else branch.member("fClassName")
    vector = _VECTOR.fullmatch(str(typename).replace(" ", ""))
    if vector and leaf.member("fLeafCount") is None:
        # In vectors ROOT ignores the packing of a comment.
        return AsJagged(AsPackedReals(vector[1], Packing()), header_bytes=_VECTOR_HEADER)
    return None


def _leaf_interpretation(typename: str, leaf: Any, specification: str) -> Interpretation:
    """The interpretation of a leaf: one number or fixed array per entry, or a counted list.

    `specification` is the text with the packing in brackets. The title of the leaf has the sizes of
    an array (`x[3][2]`); a leaf with a counter (`fLeafCount`) holds lists.
    """
    sizes = tuple(int(size) for size in re.findall(r"\[(\d+)\]", leaf.member("fTitle")))
    numbers = AsPackedReals(typename, packing_in(specification), sizes)
    return numbers if leaf.member("fLeafCount") is None else AsJagged(numbers)
