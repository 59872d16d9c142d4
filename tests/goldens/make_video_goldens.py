"""The folder videos: 80 frames of 48 x 32 pixels, 10 a second, in a file of every kind that is read, and PyAV's frames of them.

usage: make_video_goldens.py OUT      needs PyAV and numpy (pip install av numpy)

frames.safetensors has FILE/i, [32, 48, 3] of 8 bits: of the 32 frames that Hugging Face's processor looks at (i * 80 // 32) numbers 0, 9, 20 and 31.
short.mp4 has 5 frames, one a second. turned.mp4 is h264.mp4 with a header that says that it is to be turned by a quarter, with the clock.
"""
import multiprocessing
import os
import struct
import sys
from pathlib import Path

import av
import numpy as np

from make_numpy_goldens import save_safetensors

COUNT, HEIGHT, WIDTH, RATE = 80, 32, 48, 10
KINDS = {"h264.mp4": ("libx264", {"bf": "2", "g": "12"}), "open_gop.mkv": ("libx264", {"bf": "2", "g": "12", "x264-params": "open-gop=1"}),
         "hevc.mkv": ("libx265", {"x265-params": "keyint=15:log-level=0"}), "vp8.webm": ("libvpx", {"auto-alt-ref": "0"}), "vp9.webm": ("libvpx-vp9", {}),
         "av1.mp4": ("libsvtav1", {"preset": "10"}), "mjpeg.avi": ("mjpeg", {"qmin": "12", "qmax": "12"})}

def frame(i):
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    return np.stack([(x * 5 + 3 * i) % 256, (y * 7 + i) % 256, np.full_like(x, 2 * i)], axis=-1).astype(np.uint8)

def write(path, codec, options, count=COUNT, rate=RATE):
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for i in range(count):
            for packet in stream.encode(av.VideoFrame.from_ndarray(frame(i), format="rgb24")):
                out.mux(packet)
        for packet in stream.encode():
            out.mux(packet)

def write_and_leave(*wanted):
    write(*wanted)
    os._exit(0)                                          # not by way of x265's end, which crashes

def encode(*wanted):
    for _ in range(5):                                   # x265 crashes every other time on pictures so small
        encoding = multiprocessing.get_context("spawn").Process(target=write_and_leave, args=wanted)
        encoding.start()
        encoding.join()
        if encoding.exitcode == 0:
            return
    raise SystemExit(f"{wanted[0]} could not be written")

def main(out):
    out.mkdir(exist_ok=True)
    golden = {}
    for name, (codec, options) in KINDS.items():
        encode(out / name, codec, options)
        with av.open(str(out / name)) as file:
            frames = [f.to_ndarray(format="rgb24") for f in file.decode(video=0)]
        assert len(frames) == COUNT, (name, len(frames))
        for i in (0, 9, 20, 31):
            golden[f"{name}/{i}"] = frames[i * COUNT // 32]
    save_safetensors(out / "frames.safetensors", golden)
    encode(out / "short.mp4", *KINDS["h264.mp4"], 5, 1)
    upright = bytearray((out / "h264.mp4").read_bytes())
    at = upright.index(b"tkhd") + 4 + 40
    upright[at:at + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    (out / "turned.mp4").write_bytes(upright)

if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
