"""Files that Polars 2.1 wrote (`DataFrame.write_ipc`): ids 1 to 3 and three texts.

In the second the text is a Categorical, whose dictionary Polars puts behind the record batch.
"""

from __future__ import annotations

import base64
import zlib

TEXTS = ["one text", "a second text that is longer", "third"]
_PLAIN = (
    "eNrNU7FOw0AMfdccUgoRCqUDQ4cbGUFi6Nh+AVIX5qqJaCSUSG0GRgY+iE/IP7AwMjExIQYGpPDsXFAUUcGIozvn/J7t2L7M"
    "F4vLq3PAAnir63oMeTfc93GAkLvFB+0RLSEfQQfcL9D4VMQm1LHigDmByiftFlY5ZXpbiu2Vtim14xKaGYjfiJwYR+odqe87"
    "eTPBNeaQeKg5swQgVD/53BKvatKh+e6AEY41ZsTTC/HA4/dcp54HHDK/JSdWi/G5WtnDbvHlYdazt+czr++8nnQ4UkPQ8+uf"
    "TYf7E/6bSBeLPHVtzyX/0m3Tbm3lOtskO/yFuyryRAO4cr0sXbZ1N0V+nW7+kl/mg858pC/T7/nIhEfsukw00lofvN+z11Uv"
    "3j+6e49Uc/1dvgCdDGUD"
)
_CATEGORICAL = (
    "eNrlVMFKw0AQnbRRogaptYcoHvbYY6yXQi8NRUQoVIqgB6EtNtiANNJG8NgP6Af4GR579Gt6EE8i4kGIbzYbiYuVenZgdjfz"
    "ZmZn3u7Ga7dbZ/tEJhG9xHFcIl4bGNdpgyyMJt3AzngO+kCJ7xy2e8xT6ADahTpQwynSLjwc2kG0TQUqyWwc84oYgdmGMmZi"
    "tLB2a27t9qBSwxL+RJ2TZqfhnR4etdrHDa9ZISXviE9iLZnxTeUjWoXFpA9Zpyn3ivy7iJFn2KqYRVpfjvcowqdAWzKPLTNw"
    "bXXGZf41WRv3G/STvQHHae+cc6JqSvjKI8u2zMtdPQHPK/xC9cR8loAxIyYtFkfNdc2eftsZG9eX1/z0byPj+xO+jBiZ+L8K"
    "8zZbyFvuG2/6+c4zPPIxlFUc0SZ4Srgkdb+MXzjIiqvxuaf1qcdyJeHQF+l9Yv+eGPspvsJ3bRCM+gv2Y9/LcNiXCUQ06EUi"
    "GIvrcHjlj5bljzL8nWOufvHH96EobxS/J66/rIiYqfiJ1l9XHeSjhv/zN96BzZO/wk+GbaH+"
)
PLAIN, CATEGORICAL = (zlib.decompress(base64.b64decode(one)) for one in (_PLAIN, _CATEGORICAL))
