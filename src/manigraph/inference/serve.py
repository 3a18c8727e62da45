"""Classify image files with onnxruntime, Pillow and NumPy alone."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(Path(__file__).with_name("model.onnx"))
facts = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
height, width, channels = facts["shape"]
for path in sys.argv[1:]:
    file = Image.open(path)
    file.draft(None, (2 * max(width, height),) * 2)  # a large JPEG is decoded at a half or a quarter
    image = ImageOps.exif_transpose(file)
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    image = ImageOps.fit(image.convert("L" if channels == 1 else "RGB"), (width, height))
    pixels = np.asarray(image).reshape(1, height, width, channels)
    probabilities = session.run(["probabilities"], {"images": pixels})[0][0]
    print(path, facts["class_names"][probabilities.argmax()], f"{probabilities.max():.6f}")
