sources=$1
for side in "" -clang; do
    compiler=g++
    [ -z "$side" ] || compiler=clang++
    $compiler -O2 -fPIC -shared -o "libthrower$side.so" "$sources/thrower.cc"
    $compiler -O2 -fPIE -pie -o "catcher$side" "$sources/catcher.cc" -L. -l"thrower$side" -Wl,-rpath,"$PWD"
done
g++ -O2 -fno-pie -no-pie -o catcher-fixed "$sources/catcher.cc" -L. -lthrower -Wl,-rpath,"$PWD"
