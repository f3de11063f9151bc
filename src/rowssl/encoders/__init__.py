"""The encoders by name: each a file of this folder, or of `encoders/` in a folder of `ROWSSL_PLUGINS`, with

- `NAMES`: its names and a help line for each; one that ends in a colon is a prefix, such as `hf:`;
- `open(spec, tail, size, **more)`: the network cut in two, `rowssl.encoders.base.Parts`; of `more`, which holds `embedding_dim`,
  `seed` and `sha256`, it takes what it needs;
- `where(name)`, if it may be absent: whether it can be used on this machine now, and where it is or what brings it.
"""

from typing import Any

from rowssl.core.listing import Listing, with_plugins

__path__ = with_plugins(__path__, "encoders")
ENCODERS: Listing[Any] = Listing(__name__, first=("dino", "efficientnet"))
