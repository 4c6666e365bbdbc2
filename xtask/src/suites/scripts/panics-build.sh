source=$1/panics.rs
rustc --edition 2024 -O -C strip=debuginfo -o panics "$source"
rustc --edition 2024 -O -C strip=debuginfo -C link-arg=-Wl,--emit-relocs -o panics-relocs "$source"
rustc --edition 2024 -O -C strip=symbols -o panics-stripped "$source"
rustc --edition 2024 -O -C strip=debuginfo -C relocation-model=static -o panics-fixed "$source"
