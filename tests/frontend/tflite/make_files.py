"""``python tests/frontend/tflite/make_files.py FOLDER``: write ``files/`` again, with TensorFlow 2.21.

TensorFlow is needed for this alone.  Weights are random, seeded; another version names and orders operators
otherwise, so that its files differ, not what they compute.
"""

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers as L


def gates():
    """Convolutions and a squeeze-and-excitation gate."""
    x = start = keras.Input((24, 24, 4), batch_size=1)
    x = L.Conv2D(16, 3, strides=2, activation="hard_silu")(x)
    gate = L.GlobalAveragePooling2D(keepdims=True)(x)
    gate = L.Conv2D(8, 1, activation="relu")(gate)
    gate = L.Conv2D(16, 1, activation="hard_sigmoid")(gate)
    x = L.SeparableConv2D(8, 3, padding="same")(L.Multiply()([x, gate]))
    return keras.Model(start, L.UpSampling2D(2)(x))


def unet():
    """A small U-Net: dilation, transposed convolution, bilinear resizing, PReLU, ELU."""
    start = keras.Input((32, 32, 3), batch_size=1)
    a = L.Conv2D(8, 3, padding="same", activation="swish")(start)
    b = L.MaxPooling2D()(a)
    b = L.Conv2D(16, 3, padding="same", dilation_rate=2, activation="leaky_relu")(b)
    c = L.Conv2DTranspose(8, 3, strides=2, padding="same")(b)
    x = L.Concatenate()([a, c, L.UpSampling2D(2, interpolation="bilinear")(b)])
    x = L.PReLU(shared_axes=[1, 2])(L.Conv2D(4, 3, padding="same")(x))
    return keras.Model(start, L.Conv2D(2, 3, activation="elu")(L.ZeroPadding2D(1)(x)))


def words():
    """Embeddings and a causal convolution of rows."""
    start = keras.Input((10,), batch_size=2, dtype="int32")
    x = L.Conv1D(12, 3, padding="causal", activation="relu")(L.Embedding(50, 16)(start))
    return keras.Model(start, L.Dense(3)(L.GlobalMaxPooling1D()(x)))


def gru():
    """A GRU, which Keras writes as a loop."""
    start = keras.Input((12, 16), batch_size=1)
    return keras.Model(start, L.Dense(5)(L.GRU(20)(start)))


def converted(model, integers):
    """Bytes of a model's file; ``integers``: all of 8 bits, calibrated on normal numbers."""
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if integers:
        random, shape = np.random.default_rng(0), model.inputs[0].shape
        samples = [[random.standard_normal(shape).astype("float32")] for _ in range(16)]
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: samples
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    return converter.convert()


def main():
    folder = Path(sys.argv[1])
    for make, integers in ((gates, True), (unet, True), (words, False), (gru, False)):
        keras.utils.set_random_seed(0)
        name = f"{make.__name__}{'.int8' if integers else ''}.tflite"
        (folder / name).write_bytes(converted(make(), integers))


if __name__ == "__main__":
    main()
