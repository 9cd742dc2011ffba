#!/bin/bash
total orders.csv > total.txt
