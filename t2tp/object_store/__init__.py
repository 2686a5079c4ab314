"""Runs and data in object stores: `s3://`, `gs://` and `az://` addresses, through fsspec.

Programs read and write plain files in a local directory, the *mirror* of an address:

    with object_store.session():
        run = object_store.local_path("s3://bucket/run")  # ~/.cache/t2tp/stores/s3/bucket/run
        ...

`local_path` downloads the small files of the address. A thread uploads files that change, and the
session uploads the remaining changes when it ends. A large file, such as the data of a checkpoint,
is not downloaded. The mirror has a *hole* for it: a sparse local file of the same size. Readers
fetch the byte ranges that they need: `fill` fetches them into the hole itself, and `CachedRanges`
into a private file of bounded size.

Stores cannot rename, so a marker file decides whether a checkpoint exists: `FINISHED` is uploaded
last and deleted first. `StoreLock` keeps two hosts from training in one run.

The package handles no credentials. fsspec's packages find them in the environment.
"""

from t2tp.object_store.mirror import local_path, session

__all__ = ["local_path", "session"]
