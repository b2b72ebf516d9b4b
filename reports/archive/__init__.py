"""The files of an archived run: a parquet file for each table, and a manifest, as of a backup."""
