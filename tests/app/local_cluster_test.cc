// Which processes a cluster consists of; the processes themselves are in tune_test.cc.
#include "app/run/local_cluster.h"

#include <gtest/gtest.h>

#include <vector>

namespace allot::app {
namespace {

TEST(WorkerPlaces, AreOneProcessADevice) {
  EXPECT_EQ(place_workers(parse_device_list("cuda:0,cuda:2,cpu"), 1),
            (std::vector<WorkerPlace>{
                {.name = "worker-1", .device = "cuda:0"},
                {.name = "worker-2", .device = "cuda:2"},
                {.name = "worker-3", .device = "cpu"},
            }));
}

TEST(WorkerPlaces, AreSeveralOnEachDeviceWhereSeveralAreAskedFor) {
  EXPECT_EQ(place_workers(parse_device_list("cuda:1,cpu"), 2), (std::vector<WorkerPlace>{
                                                                   {.name = "worker-1", .device = "cuda:1"},
                                                                   {.name = "worker-2", .device = "cuda:1"},
                                                                   {.name = "worker-3", .device = "cpu"},
                                                                   {.name = "worker-4", .device = "cpu"},
                                                               }));
}

}  // namespace
}  // namespace allot::app
