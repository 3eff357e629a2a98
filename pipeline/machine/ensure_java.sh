#!/bin/sh
# Spark 4.0 needs Java 17 or 21. Install Debian's headless one where we may, else say what to install.
set -eu

java=java
[ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"

version() {
    "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

good() {
    case "$(version || true)" in 17 | 21) return 0 ;; *) return 1 ;; esac
}

good && exit 0
if [ -n "${JAVA_HOME:-}" ]; then
    echo "JAVA_HOME ($JAVA_HOME) holds no Java 17 or 21. Point it to one, or unset it." >&2
    exit 1
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Java 17 ..." >&2
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless >/dev/null
    good && exit 0
fi
echo "Java 17 or 21 is needed (Spark runs on it). Install it, for example:" >&2
echo "  sudo apt-get install openjdk-17-jre-headless    (Debian, Ubuntu)" >&2
echo "  sudo dnf install java-17-openjdk-headless       (Fedora, RHEL)" >&2
echo "  brew install openjdk@17                         (macOS)" >&2
exit 1
