"""`rowssl encoders`: which can be used on this machine now, and how to get the others."""

from __future__ import annotations


def encoders() -> None:
    """List the encoders by name: whether each works on this machine now, and where it is or how to get it."""
    from rowssl.core.console import out as console
    from rowssl.encoders import weights
    from rowssl.encoders.base import available_encoders, best_available

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    say(f"{'encoder':18}  here  where it is, or what brings it")
    for one in available_encoders():
        how = one.how
        if not one.works and one.spec in weights.PUBLISHED:  # without the address, which the page has
            how = f"hf download {weights.PUBLISHED[one.spec].repository} {weights.FILE}"
        say(f"{one.spec:18}  {'yes' if one.works else 'no':4}  {how}")
    say(f"or the authors' own file, saved in {weights.cache_dir()}: docs/encoders.md has the addresses")
    say(
        "also: the path of a .safetensors or .pth file of a DINO or DINOv2 ViT; a Hugging Face folder of a ResNet, "
        "or with the extra `hf` also of ConvNeXt, ViT, DINOv2, DINOv3, CLIP, and hf:NAME"
    )
    name, why = best_available(has_images=True)
    say(f"for pictures, if you do not choose: {name}. {why}")
