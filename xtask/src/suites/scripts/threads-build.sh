sources=$1
for which in first second; do
    gcc -O2 -fPIC -shared -DWHICH=$which -o libthread-$which.so "$sources/thread_library.c"
done
link="-L. -lthread-first -Wl,-rpath,$PWD -ldl -pthread"
gcc -O2 -fPIE -pie -o threads "$sources/threads.c" $link
gcc -O2 -fno-pie -no-pie -o threads-fixed "$sources/threads.c" $link
gcc -O2 -fPIE -pie -mtls-dialect=gnu2 -o threads-descriptors "$sources/threads.c" $link
