"""Use a model of `rowssl export RUN --onnx model.onnx` with onnxruntime, numpy and pillow alone.

python onnx_predict.py model.onnx picture.jpg ...
python onnx_predict.py model.onnx embeddings.npy       (a model that was trained on embeddings)
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

BATCH = 64


def read_picture(path: str) -> Image.Image:
    """A picture as RGB: turned as its EXIF data say, transparency on white."""
    image = ImageOps.exif_transpose(Image.open(path))
    if "A" in image.mode or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def cut(image: Image.Image, size: int, resize: int, longest: int) -> np.ndarray:
    """The middle of a picture as the model looks at it, uint8 (size, size, 3)."""
    width, height = image.size
    most = longest * min(width, height)  # of a very long picture only the middle counts
    if max(width, height) > most:
        left, top = max(0, (width - most) // 2), max(0, (height - most) // 2)
        image = image.crop((left, top, left + min(width, most), top + min(height, most)))
    width, height = image.size
    target = (int(resize * width / min(width, height)), int(resize * height / min(width, height)))
    if image.size != target:
        image = image.resize(target, Image.Resampling.BICUBIC)
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return np.array(image.crop((left, top, left + size, top + size)))


def main(model: str, *sources: str) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    about = {key: json.loads(value) for key, value in session.get_modelmeta().custom_metadata_map.items()}
    if about["input_kind"] == "pixels":
        rows, names = list(sources), list(sources)
    else:
        rows = np.concatenate([np.load(source) for source in sources]).astype(np.float32)
        names = [f"row {i}" for i in range(len(rows))]

    print("file", "class", "name", "kind", "confidence", "far", sep="\t")
    for begin in range(0, len(rows), BATCH):
        part = rows[begin : begin + BATCH]
        if about["input_kind"] == "pixels":
            view = about["image_size"], about["resize"], about["longest"]
            part = np.stack([cut(read_picture(path), *view) for path in part])
        scores, label, distance = session.run(["scores", "label", "distance"], {about["input_kind"]: part})
        for i, c in enumerate(label):  # `label` decides, not the largest score: they differ where classes were merged
            far = "far" if distance[i] > about["far_limit"] else ""
            texts = about["class_ids"][c], about["class_names"][c], about["class_kinds"][c]
            print(names[begin + i], *texts, f"{scores[i, c]:.4f}", far, sep="\t")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
