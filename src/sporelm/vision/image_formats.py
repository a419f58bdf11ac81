"""Recognizes the format of a picture by its first bytes, and suggests a remedy for unsupported files."""

from sporelm.errors import RequestError

FORMATS = ("PNG", "JPEG", "WebP", "GIF", "BMP")
ALLOWED = "PNG, JPEG, WebP, GIF, BMP"

_AS_PNG = "Save it as PNG or JPEG"
_FRAMES = "Send single frames of it as PNG or JPEG"
_TEXT_BYTES = 1024  # of a text file that are searched for its kind

# Offset and magic bytes, the kind of file, and the remedy.
_UNSUPPORTED = (
    (0, b"%PDF-", "a PDF document", "Save its pages as PNG"),
    (0, b"II*\0", "a TIFF picture", _AS_PNG),
    (0, b"MM\0*", "a TIFF picture", _AS_PNG),
    (0, b"II+\0", "a TIFF picture", _AS_PNG),
    (0, b"MM\0+", "a TIFF picture", _AS_PNG),
    (0, b"\0\0\0\x0cjP  ", "a JPEG 2000 picture", _AS_PNG),
    (0, b"\0\0\0\x0cJXL ", "a JPEG XL picture", _AS_PNG),
    (0, b"\xff\x0a", "a JPEG XL picture", _AS_PNG),
    (0, b"\0\0\1\0", "an icon", _AS_PNG),
    (0, b"8BPS", "a Photoshop file", _AS_PNG),
    (0, b"%!PS", "a PostScript file", _AS_PNG),
    (0, b"\xc5\xd0\xd3\xc6", "a PostScript file", _AS_PNG),
    (0, b"\x1aE\xdf\xa3", "a video", _FRAMES),
    (0, b"FLV", "a video", _FRAMES),
    (0, b"OggS", "a video or sound", _FRAMES),
    (0, b"\0\0\1\xba", "a video", _FRAMES),
    (8, b"AVI ", "a video", _FRAMES),
    (8, b"WAVE", "a sound", "Send a picture"),
    (0, b"ID3", "a sound", "Send a picture"),
    (0, b"PK\3\4", "a ZIP archive or an office document", "Send the pictures in it, each by itself"),
    (0, b"\x1f\x8b", "a gzip file", "Decompress it"),
    (0, b"GGUF", "a GGUF file", "Send a picture"),
)
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_AVIF_BRANDS = (b"avif", b"avis")
_BASE64_BEGINNINGS = (b"iVBORw0KGgo", b"/9j/", b"R0lGOD", b"UklGR", b"Qk0")


def detect_format(data: bytes) -> str:
    """Return the format of a file by its first bytes: one of FORMATS. The rest may still be damaged.

    Raises RequestError, which names the kind of file that it seems to be, and the remedy.
    """
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WebP"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if data.startswith(b"BM"):
        return "BMP"
    if not data:
        raise RequestError(f"image: the file is empty (got 0 bytes; allowed {ALLOWED}). Send the bytes of a picture.")
    kind, remedy = _describe(data)
    raise RequestError(f"image: not a supported picture (got {kind}; allowed {ALLOWED}). {remedy}.")


def _describe(data: bytes) -> tuple[str, str]:
    """Return the kind of an unsupported file, and the remedy."""
    for offset, beginning, kind, remedy in _UNSUPPORTED:
        if data.startswith(beginning, offset):
            return kind, remedy
    if data[4:8] == b"ftyp":
        if data[8:12] in _HEIC_BRANDS:
            return "a HEIC picture", _AS_PNG
        if data[8:12] in _AVIF_BRANDS:
            return "an AVIF picture", _AS_PNG
        return "a video", _FRAMES
    text = data[:_TEXT_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip()
    lower = text.lower()
    if lower.startswith(b"<svg") or (lower.startswith((b"<?xml", b"<!--", b"<!doctype svg")) and b"<svg" in lower):
        return "an SVG drawing", "Render it to PNG"
    if lower.startswith((b"<!doctype html", b"<html", b"<head", b"<body")) or b"<html" in lower:
        return "an HTML page", "Use the address of the picture itself, not of a page that shows it"
    if lower.startswith(b"data:"):
        return "a data URI in place of a file", "Send it as a URL, or decode it"
    if text.startswith(_BASE64_BEGINNINGS):
        return "base64 text", "Decode it, or send it as a data URI"
    if text.startswith((b"{", b"[")):
        return "JSON text", "Send the bytes of a picture"
    return f"{len(data)} bytes that begin with {data[:8].hex(' ')}", "Send the bytes of a picture"
