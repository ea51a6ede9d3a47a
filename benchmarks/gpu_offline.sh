#!/usr/bin/env bash
# Takes along what a GPU machine without a network lacks to run this project: TVM and a few small wheels.
#
#   here:   benchmarks/gpu_offline.sh pack [X.Y]          Python version there (3.12); makes .gpu1/ and .gpu2/
#   there:  benchmarks/gpu_offline.sh keep                with .gpu1/: puts it aside, in /tmp
#   there:  . benchmarks/gpu_offline.sh install           with .gpu2/, or both: installs into /tmp/site
#   there:  . benchmarks/gpu_offline.sh use               in later shells
#
# Two folders, because TVM's wheel alone can be more than a transfer takes (each stays under 60 MiB).
# "install" and "use" are sourced: they set PYTHONPATH and LD_LIBRARY_PATH.
gpu_offline() {
    case "${1:-}" in
    pack)
        local python=${2:-3.12} work platform=()
        work=$(mktemp -d) || return
        for tag in 2_34 2_28 2_27 2_24 2_17 2014; do platform+=(--platform "manylinux${tag/#2_/_2_}_x86_64"); done
        python3 -m pip download -q --no-deps --only-binary=:all: --implementation cp --python-version "$python" \
            "${platform[@]}" --platform any -d "$work" \
            apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1 xgboost-cpu==3.2.0 || return
        rm -rf .gpu1 .gpu2 && mkdir .gpu1 .gpu2 || return
        split -n 2 -d "$work"/apache_tvm-*.whl "$work/half" || return
        mv "$work/half00" .gpu1/ && mv "$work/half01" .gpu2/ || return
        basename "$work"/apache_tvm-*.whl > .gpu1/name
        rm "$work"/apache_tvm-*.whl && mv "$work"/xgboost*.whl .gpu2/ && mv "$work"/*.whl .gpu1/ && rm -r "$work"
        du -sm .gpu1 .gpu2
        ;;
    keep)
        rm -rf /tmp/gpu1 && cp -r .gpu1 /tmp/gpu1
        ;;
    install)
        local first=.gpu1
        [ -d "$first" ] || first=/tmp/gpu1
        rm -rf /tmp/wheels && mkdir /tmp/wheels && cp "$first"/*.whl .gpu2/*.whl /tmp/wheels/ &&
            cat "$first/half00" .gpu2/half01 > "/tmp/wheels/$(cat "$first/name")" &&
            python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
                --target /tmp/site /tmp/wheels/*.whl && rm -r /tmp/wheels &&
            gpu_offline use
        ;;
    use)
        export PYTHONPATH="/tmp/site:$PWD${PYTHONPATH:+:$PYTHONPATH}"
        export LD_LIBRARY_PATH="/usr/local/cuda/lib64:/usr/local/cuda-13.0/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        python3 -c "import tvm; print('tvm', tvm.__version__)"
        ;;
    *)
        sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        return 2
        ;;
    esac
}
gpu_offline "$@"
