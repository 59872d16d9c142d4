#!/usr/bin/env python3
"""Writes the files of tests/goldens/sounds but for features.safetensors: the same tones in every format that is read.

    make_sound_goldens.py OUT

Needs numpy and soundfile, which has a libsndfile of its own. Half a second of 440 Hz in the left channel and of 1,000 Hz in the right,
each of amplitude 0.5.
"""
import sys
from pathlib import Path

import numpy as np
import soundfile


def tones(rate, channels):
    t = np.arange(rate // 2) / rate
    both = 0.5 * np.stack([np.sin(2 * np.pi * 440 * t), np.sin(2 * np.pi * 1000 * t)], axis=-1)
    return both if channels == 2 else both.mean(axis=-1)


def main():
    out = Path(sys.argv[1])
    for name, rate, channels, format, subtype in (("mono16k.wav", 16000, 1, "WAV", "PCM_16"), ("stereo44k.wav", 44100, 2, "WAV", "PCM_24"),
                                                  ("float8k.wav", 8000, 1, "WAV", "FLOAT"), ("stereo48k.flac", 48000, 2, "FLAC", "PCM_16"),
                                                  ("mono22k.mp3", 22050, 1, "MP3", "MPEG_LAYER_III"), ("stereo44k.ogg", 44100, 2, "OGG", "VORBIS"),
                                                  ("stereo48k.opus", 48000, 2, "OGG", "OPUS")):
        soundfile.write(out / name, tones(rate, channels), rate, format=format, subtype=subtype)


if __name__ == "__main__":
    main()
