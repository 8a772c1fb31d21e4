#!/bin/sh
# Installs apilet for this machine. It verifies the checksum of the archive before it unpacks it.
#
#   sh install.sh [--from URL] [--to FOLDER] [--flavour full|noetcd]
#
# URL is the address of the folder with the release's files, or its path. FOLDER receives the program.
set -eu

version='@VERSION@'
from='@URL@'
to=${HOME:-/usr/local}/.local/bin
flavour=full

fail() {
	echo "install.sh: $*" >&2
	exit 1
}

while [ $# -gt 0 ]; do
	[ $# -gt 1 ] || fail "$1 needs a value"
	case $1 in
	--from) from=$2 ;;
	--to) to=$2 ;;
	--flavour) flavour=$2 ;;
	*) fail "unknown argument $1" ;;
	esac
	shift 2
done
[ -n "$from" ] || fail '--from URL is missing: the folder with the files of the release'

# platform prints the platform in the names of the files.
platform() {
	case $(uname -s) in
	Linux) system=linux ;;
	Darwin) system=darwin ;;
	*) fail "there is no archive for $(uname -s)" ;;
	esac
	case $(uname -m) in
	x86_64 | amd64) processor=amd64 ;;
	aarch64 | arm64) processor=arm64 ;;
	armv7* | armv8l) processor=arm ;;
	riscv64) processor=riscv64 ;;
	*) fail "there is no archive for $(uname -m)" ;;
	esac
	echo "$system-$processor"
}

# get writes a file of the release into the temporary folder.
get() {
	case $from in
	http://* | https://* | file://*)
		if command -v curl >/dev/null; then
			curl --fail --silent --show-error --location --output "$work/$1" "$from/$1"
		elif command -v wget >/dev/null; then
			wget --quiet --output-document "$work/$1" "$from/$1"
		else
			fail 'neither curl nor wget is installed'
		fi ;;
	*) cp "$from/$1" "$work/$1" ;;
	esac || fail "cannot get $from/$1"
}

# sum prints the SHA-256 checksum of a file.
sum() {
	if command -v sha256sum >/dev/null; then
		sha256sum "$1"
	elif command -v shasum >/dev/null; then
		shasum -a 256 "$1"
	else
		fail 'neither sha256sum nor shasum is installed'
	fi | cut -d ' ' -f 1
}

title=apilet-$version-$(platform)
case $flavour in
full) ;;
noetcd) title=$title-noetcd ;;
*) fail "--flavour is full or noetcd, and not $flavour" ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
get SHA256SUMS
want=$(sed -n "s/^\([0-9a-f]*\)  $title\.tar\.gz\$/\1/p" "$work/SHA256SUMS")
[ -n "$want" ] || fail "SHA256SUMS does not have $title.tar.gz"
get "$title.tar.gz"
got=$(sum "$work/$title.tar.gz")
[ "$got" = "$want" ] || fail "$title.tar.gz has the checksum $got instead of $want"
tar -xzf "$work/$title.tar.gz" -C "$work"
mkdir -p "$to"
cp "$work/$title/apilet" "$to/.apilet.new"
chmod 755 "$to/.apilet.new"
mv "$to/.apilet.new" "$to/apilet" # a program that runs cannot be overwritten, but replaced
echo "installed $to/apilet $version"
case :$PATH: in
*":$to:"*) ;;
*) echo "$to is not in PATH" ;;
esac
