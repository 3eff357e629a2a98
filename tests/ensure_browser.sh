#!/bin/sh
# Tests open the report in a real browser, Chromium. This installs Debian's as root; otherwise it says what to install.
set -eu

found() {
    for name in chromium chromium-browser google-chrome; do
        command -v "$name" >/dev/null && return 0
    done
    return 1
}

found && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Chromium ..." >&2
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
    found && exit 0
fi
echo "Chromium or Chrome is needed (tests open the report in it). Install it, for example:" >&2
echo "  sudo apt-get install chromium    (Debian, Ubuntu)" >&2
echo "  sudo dnf install chromium        (Fedora, RHEL)" >&2
echo "Its command must be on the PATH as chromium, chromium-browser or google-chrome." >&2
exit 1
