//! Compiles `shim.c`, which gives the functions of the C header a place, and links TVM's two libraries.
//!
//! They are those of the Python that `PYTHON` names (default: python3), which has hetero-tvm or hetero-tvm-runtime; `CC` is the C compiler (default: cc).
//! A copy of this project elsewhere takes the header from that Python's hetero_tvm.

use std::{env, path::PathBuf, process::Command};

const FOLDERS: &str = "import importlib.util as u, pathlib
p = lambda n: pathlib.Path(u.find_spec(n).submodule_search_locations[0])
own = u.find_spec('hetero_tvm') and p('hetero_tvm') / 'runtime' / 'lib'
print(own if own and own.exists() else p('tvm') / 'lib', p('tvm_ffi') / 'lib', p('tvm_ffi') / 'include', sep='\\n')";

const HEADERS: &str = "import importlib.util as u, pathlib
print(pathlib.Path(u.find_spec('hetero_tvm').submodule_search_locations[0]) / 'runtime' / 'cpp' / 'include')";

fn main() {
    let python = env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let text = answer(&python, FOLDERS);
    let folders: Vec<&str> = text.lines().collect();
    assert!(folders.len() == 3, "{python} has no apache-tvm and no hetero-tvm-runtime: set PYTHON");

    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").unwrap());
    let mut headers = here.join("../../include");
    if !headers.join("hetero_tvm.h").exists() {
        headers = PathBuf::from(answer(&python, HEADERS).trim());
        assert!(headers.join("hetero_tvm.h").exists(), "{python} has no hetero_tvm: set PYTHON");
    }
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    let object = out.join("shim.o");
    let archive = out.join("libshim.a");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    run(Command::new(compiler)
        .args(["-std=c11", "-O2", "-fPIC", "-Wall", "-c"])
        .arg(here.join("shim.c"))
        .arg("-I")
        .arg(headers)
        .args(["-isystem", folders[2], "-o"])
        .arg(&object));
    run(Command::new("ar").arg("crs").arg(&archive).arg(&object));

    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=shim");
    println!("cargo:rustc-link-arg=-Wl,--no-as-needed"); // the runtime's functions are found by name
    for (folder, name) in [(folders[0], "tvm_runtime"), (folders[0], "tvm_runtime_extra"), (folders[1], "tvm_ffi")] {
        println!("cargo:rustc-link-arg={folder}/lib{name}.so");
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
    println!("cargo:rustc-link-arg=-ldl");
    println!("cargo:rerun-if-changed=shim.c");
    println!("cargo:rerun-if-env-changed=PYTHON");
}

fn answer(python: &str, script: &str) -> String {
    let found = Command::new(python).args(["-c", script]).output().expect("PYTHON cannot be run");
    String::from_utf8(found.stdout).expect("a path that is not UTF-8")
}

fn run(command: &mut Command) {
    assert!(command.status().expect("a C compiler is needed").success(), "{command:?} failed");
}
