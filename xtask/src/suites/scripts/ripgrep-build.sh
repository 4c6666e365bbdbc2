RUSTFLAGS=$2 cargo install --quiet ripgrep --version 14.1.1 --locked --root . --target-dir target
rm -rf target
