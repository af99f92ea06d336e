"""Which one bit has turned, by what became of the checksum: the search for it computes no checksum for each bit."""

from hypothesis import given
from hypothesis import strategies as st

from txstore.format import commitfile, packfile
from txstore.format.encoding import crc32c
from txstore.format.packfile import Predecessor
from txstore.format.regions import Region
from txstore.maintenance import rebuild


def turned(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_the_bit_is_found(content: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    difference = crc32c(content) ^ crc32c(turned(content, bit))
    assert rebuild.turned_bit(len(content), difference) == bit


@given(st.binary(min_size=2, max_size=300), st.data())
def test_of_two_bits_none_is(content: bytes, data: st.DataObject) -> None:
    one, other = (data.draw(st.integers(0, 8 * len(content) - 1)) for _ in range(2))
    found = rebuild.turned_bit(len(content), crc32c(content) ^ crc32c(turned(turned(content, one), other)))
    assert found is None


@given(
    st.sampled_from([0, 1, Predecessor(3, 9)]), st.binary(min_size=1, max_size=60), st.binary(max_size=20),
    st.sampled_from([b"", Region.of_box(((0, 5), (3, 900))).encode()]), st.data(),
)  # fmt: skip
def test_any_bit_of_a_frame_is_turned_back(seen, key, behind, region, data):
    kind = packfile.FRAME_PARTIAL if region else packfile.FRAME_VALUE
    frame = packfile.encode_frame(kind, seen, 5, key, len(behind), crc32c(behind), region)
    bit = data.draw(st.integers(0, 8 * len(frame) - 1))
    assert frame + behind in rebuild._frames_with_one_bit_turned(turned(frame + behind, bit))


@given(st.integers(0, 8 * commitfile.FOOTER_SIZE - 1))
def test_any_bit_of_a_footer_is_turned_back(bit: int) -> None:
    footer = commitfile.Footer(200, 4096, 4360, bytes(range(16)), 77).encode()
    assert footer in rebuild._sealed_with_one_bit_turned(turned(footer, bit))
