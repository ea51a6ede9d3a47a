//! Runs an exported library: `run_a_model model.so [input.npy ...]`; inputs that are not given are ones.

mod model;

use model::{Array, Model};
use std::{env, process::ExitCode, time::Instant};

fn run(arguments: &[String]) -> Result<(), String> {
    let (path, files) = arguments.split_first().ok_or("usage: run_a_model model.so [input.npy ...]")?;
    let mut model = Model::open(path)?;
    let inputs = match files {
        [] => model.inputs().iter().map(Array::ones).collect::<Result<Vec<_>, _>>()?,
        _ => files.iter().map(|file| Array::read_npy(file)).collect::<Result<Vec<_>, _>>()?,
    };
    model.run(&inputs)?; // the first call reads weights and starts threads
    let start = Instant::now();
    model.run(&inputs)?;
    let milliseconds = 1e3 * start.elapsed().as_secs_f64();
    for index in 0..model.outputs() {
        if let Some(values) = model.output_f32(index) {
            let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
            println!("output {index}: {} values, sum {sum:.6}", values.len());
        }
    }
    println!("{}: {milliseconds:.3} ms", model.name());
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
