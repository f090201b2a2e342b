# Shared by the scripts of this folder: names, the builder's storage, and where images are kept.
# shellcheck shell=bash disable=SC2034
. "$(dirname "${BASH_SOURCE[0]}")/../lib/common.sh"
IMAGES=$CACHE/images
STORE=$CACHE/buildah/storage
RUNROOT=$CACHE/buildah/run
NAMES=(pytorch horovod filebrowser)
REGISTRY=localhost # under this name they are built and loaded; push gives them their names in a registry

# sources: every file that goes into the images
sources() {
  (cd "$ROOT" && find src trainers images pyproject.toml LICENSE .dockerignore -type f \
    ! -path "*/__pycache__/*" ! -path "images/*.md" | LC_ALL=C sort)
}

# base_key: the content of the local base, or the name of the base that the user gave
base_key() { (cd "$ROOT" && find images/base -type f | LC_ALL=C sort) | content_key "${BASE_IMAGE:-local}"; }

# kept_wheel: where the wheel of Horovod is kept that was compiled for the local base: tests on this machine use it too
kept_wheel() { echo "$CACHE/wheels/local-$( (cd "$ROOT" && find images/base images/horovod -type f | LC_ALL=C sort) | content_key)"; }

# bases: what users may choose to stand on: that of the training images, and that of the file server
bases() { echo "${BASE_IMAGE:-local}${FILEBROWSER_BASE_IMAGE:+ $FILEBROWSER_BASE_IMAGE}"; }

image_tag() {
  local version
  version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$ROOT/pyproject.toml" | head -n 1)
  echo "$version-$(sources | content_key "$(bases)" | cut -c1-12)"
}

# builder ARGS...: buildah on this project's own storage
builder() { buildah --root "$STORE" --runroot "$RUNROOT" --storage-driver overlay "$@"; }

# null_device: some sandboxes leave a file where /dev/null was. What runs in an image sees this machine's /dev read-only, where a device can
# still be written to, and a file cannot.
null_device() {
  [ ! -c /dev/null ] || return 0
  say "/dev/null is a file, not a device: it is recreated"
  rm -f /dev/null.new
  { mknod -m 666 /dev/null.new c 1 3 && { mv -f /dev/null.new /dev/null || mount --bind /dev/null.new /dev/null; }; } ||
    die "/dev/null is no device, and what runs in an image needs it. As root: rm -f /dev/null && mknod -m 666 /dev/null c 1 3"
}

# buildah leaves its storage mounted on itself, and then the folder cannot be removed
unmount_store() {
  local point=$STORE/overlay
  while mountpoint -q "$point" 2> /dev/null && umount "$point" 2> /dev/null; do :; done
}

# image_name NAME: what it is called in a registry or on the node, without its tag
image_name() { echo "$REGISTRY/trainyard-$1"; }

# tags: what the cache holds, newest first; newest_tag: the first of them
tags() { (cd "$IMAGES" 2> /dev/null && ls -td -- [0-9]*-*/ 2> /dev/null) | sed 's,/$,,' || true; }
newest_tag() { tags | head -n 1; }
